"""AlterReplicaLogDirs (34), versions 0 to 2, and DescribeLogDirs (35), versions 0 to 5 (KIP-113).

AlterReplicaLogDirs: v2 is flexible. DescribeLogDirs: v1 throttles; v2 is flexible; v3 has a
top-level error; v4 the volume's size (KIP-827); v5 cordoned directories. A node has one log
directory, its data folder: a move to it has nothing to do, any other fails. A partition's size is
that of its live batches in all segments. A data folder that cannot be written is offline
(KAFKA_STORAGE_ERROR, KIP-112); what it holds is listed all the same, because it can be read.
"""

import shutil

from odradek.cluster.metadata.acls import AclOperation
from odradek.cluster.metadata.image import PartitionImage
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import LoopYielder, iterate_cooperatively
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from odradek.protocol.messages.partitions import PartitionResult, TopicPartitionResults


async def handle_alter_replica_log_dirs(
    request: AlterReplicaLogDirsRequest, context: RequestContext, services: Services
) -> AlterReplicaLogDirsResponse:
    """Whether each replica is in the requested directory. If a partition is named for several
    directories the last one counts, as in Kafka."""
    is_allowed = services.authorizer.is_cluster_allowed(context, AclOperation.ALTER)
    wanted: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            paths = wanted.setdefault(topic.name, {})
            paths.update(dict.fromkeys(topic.partitions, directory.path))
    results = []
    for name, paths in wanted.items():
        image = services.image.topics_by_name.get(name)
        partitions = image.partitions if image is not None else ()
        results.append(
            TopicPartitionResults(
                name=name,
                partitions=[
                    PartitionResult(
                        partition_index=index,
                        error_code=_move(
                            path,
                            partitions[index] if 0 <= index < len(partitions) else None,
                            services,
                        )
                        if is_allowed
                        else ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                    )
                    for index, path in paths.items()
                ],
            )
        )
    return AlterReplicaLogDirsResponse(results=results)


def _move(path: str, partition: PartitionImage | None, services: Services) -> ErrorCode:
    if path != _log_dir(services):
        return ErrorCode.LOG_DIR_NOT_FOUND
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if services.node_id not in partition.replicas:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    return ErrorCode.NONE


def _log_dir(services: Services) -> str:
    return str(services.logs.folder.parent)  # the data folder, which log.dirs names


async def handle_describe_log_dirs(
    request: DescribeLogDirsRequest, context: RequestContext, services: Services
) -> DescribeLogDirsResponse:
    """Sizes of the requested partitions that this node has. Null means all, an empty list none."""
    if not services.authorizer.is_cluster_allowed(context, AclOperation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    by_name = services.image.topics_by_name
    requested: dict[str, set[int]] = {}
    if request.topics is None:
        requested = {name: set(range(len(topic.partitions))) for name, topic in by_name.items()}
    else:
        async for wanted in iterate_cooperatively(request.topics, context):
            requested.setdefault(wanted.name, set()).update(wanted.partitions)
    topics = []
    pace = LoopYielder(context)
    for name, indexes in requested.items():
        await pace.step()
        topic = by_name.get(name)
        if topic is None:
            continue
        partitions = []
        for index in sorted(indexes):
            await pace.step()
            state = services.image.partition(topic.topic_id, index)
            if state is None or services.node_id not in state.replicas:
                continue  # the log of a replica that has moved away, to be deleted
            log = services.logs.open(topic.topic_id, index)
            if log is not None:
                partitions.append(
                    DescribeLogDirsPartition(
                        partition_index=index, partition_size=log.reader.size_bytes(log.number)
                    )
                )
        if partitions:
            topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
    folder = _log_dir(services)
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        result = DescribeLogDirsResult(log_dir=folder, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        return DescribeLogDirsResponse(results=[result])
    settings = services.metadata.broker_settings()
    is_offline = bool(services.storage_problem)
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                error_code=ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NONE,
                log_dir=folder,
                topics=topics,
                total_bytes=usage.total,
                usable_bytes=usage.free,
                is_cordoned=bool(settings.cordoned_log_dirs),
            )
        ]
    )
