"""An image as records: the snapshot that replaces the beginning of a long metadata log.

Applied to the empty image the records give an image of the same content, without its history.
"""

from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import (
    AclCreated,
    ClientQuotaChanged,
    ClusterCreated,
    ConfigChanged,
    DecoyKeyCreated,
    DelegationTokenChanged,
    FeatureLevelChanged,
    PartitionsAdded,
    ProducerIdsAllocated,
    Record,
    ScramCredentialChanged,
    TopicCreated,
)


def image_records(image: MetadataImage) -> list[Record]:
    """The records that lead from the empty image to this one."""
    records: list[Record] = []
    if image.cluster_id:
        records.append(ClusterCreated(image.cluster_id))
    records.extend(FeatureLevelChanged(name, level) for name, level in image.features.items())
    records.extend(image.brokers.values())
    for topic in image.topics_by_id.values():
        records.append(TopicCreated(topic.name, topic.topic_id))
        records.append(PartitionsAdded(topic.topic_id, 0, topic.partitions))
    records.extend(
        ConfigChanged(resource.type, resource.name, key, value)
        for resource, configs in image.configs.items()
        for key, value in configs.items()
    )
    records.extend(
        ClientQuotaChanged(entity, key, value)
        for entity, quotas in image.client_quotas.items()
        for key, value in quotas.items()
    )
    records.extend(AclCreated(binding) for binding in image.acls)
    if image.next_producer_id:
        records.append(ProducerIdsAllocated(-1, -1, image.next_producer_id))
    records.extend(
        ScramCredentialChanged(user.name, user.mechanism, credential)
        for user, credential in image.scram_credentials.items()
    )
    records.extend(map(DelegationTokenChanged, image.delegation_tokens.values()))
    if image.decoy_key:
        records.append(DecoyKeyCreated(image.decoy_key))
    return records
