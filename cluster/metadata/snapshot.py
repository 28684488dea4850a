"""An image as records: what replaces the metadata log's beginning once it has grown long.

Replaying the records upon the empty image gives an image of the same content; nothing of the
history that led to it is kept. Called by the controller's driver, which writes them, and by
nodes that follow from nothing.
"""

import msgspec

from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import (
    BrokerRegistered,
    ClusterCreated,
    ConfigChanged,
    FeatureLevelChanged,
    PartitionsAdded,
    ProducerIdsAllocated,
    Record,
    TopicCreated,
)


def image_records(image: MetadataImage) -> list[Record]:
    """The records that lead from the empty image to this one."""
    records: list[Record] = []
    if image.cluster_id:
        records.append(ClusterCreated(image.cluster_id))
    records.extend(FeatureLevelChanged(name, level) for name, level in image.features.items())
    records.extend(
        BrokerRegistered(**msgspec.structs.asdict(broker)) for broker in image.brokers.values()
    )
    for topic in image.topics_by_id.values():
        records.append(TopicCreated(topic.name, topic.topic_id))
        records.append(PartitionsAdded(topic.topic_id, 0, topic.partitions))
    records.extend(
        ConfigChanged(resource.type, resource.name, key, value)
        for resource, configs in image.configs.items()
        for key, value in configs.items()
    )
    if image.next_producer_id:
        records.append(ProducerIdsAllocated(-1, -1, image.next_producer_id))
    return records
