"""DescribeLogDirs (35): versions 0 to 5.

v1 throttles; v2 is flexible; v3 has an error of its own; v4 the volume's size (KIP-827); v5
cordoned directories. A node has one data folder, so it is the one log directory; a partition's size
is that of its live batches in all segments.
"""

import shutil

from cluster.metadata.settings import broker_settings
from node.router.authorizer import CLUSTER_NAME, Operation, ResourceType
from node.router.context import RequestContext, Services
from protocol.errors import ErrorCode
from protocol.messages.cluster import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


async def handle_describe_log_dirs(
    request: DescribeLogDirsRequest, context: RequestContext, services: Services
) -> DescribeLogDirsResponse:
    """Sizes of the asked partitions that are here; null asks for all of them, an empty list for
    none."""
    if not services.authorizer.check(
        context, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
    ):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    by_name = services.image.topics_by_name
    asked: dict[str, set[int]] = {}
    if request.topics is None:
        asked = {name: set(range(len(topic.partitions))) for name, topic in by_name.items()}
    else:
        for wanted in request.topics:
            asked.setdefault(wanted.topic, set()).update(wanted.partitions)
    topics = []
    for name, indexes in asked.items():
        topic = by_name.get(name)
        if topic is None:
            continue
        partitions = []
        for index in sorted(indexes):
            state = services.image.partition(topic.topic_id, index)
            if state is None or services.node_id not in state.replicas:
                continue  # what is left of a replica that moved away is only to be deleted
            place = services.logs.locate(topic.topic_id, index)
            reader = services.logs.reader(place[0]) if place is not None else None
            if place is not None and reader is not None:
                partitions.append(
                    DescribeLogDirsPartition(
                        partition_index=index, partition_size=reader.size_bytes(place[1])
                    )
                )
        if partitions:
            topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
    folder = services.logs.folder.parent  # the data folder, which log.dirs names
    usage = shutil.disk_usage(folder)
    settings = broker_settings(services.image, services.node_id, services.static_configs)
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                log_dir=str(folder),
                topics=topics,
                total_bytes=usage.total,
                usable_bytes=usage.free,
                is_cordoned=bool(settings.cordoned_log_dirs),
            )
        ]
    )
