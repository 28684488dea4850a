"""AlterReplicaLogDirs (34), versions 0 to 2, and DescribeLogDirs (35), versions 0 to 5 (KIP-113).

AlterReplicaLogDirs: v2 is flexible. DescribeLogDirs: v1 throttles; v2 is flexible; v3 has a
top-level error; v4 the volume's size (KIP-827); v5 cordoned directories. The first log directory of
a node is its data folder. A partition's size is that of its live batches in all segments. A replica
that is being moved is listed twice: where it is, and as a future replica where it is copied to. A
directory that has failed is offline (KAFKA_STORAGE_ERROR, KIP-112). A data folder that cannot be
written is, too; what it holds is listed all the same, because it can be read.
"""

import shutil

from odradek.cluster.metadata.acls import AclOperation
from odradek.cluster.metadata.broker_settings import ANY_LOG_DIR
from odradek.node.bus.messages import UNSENT, MoveReplica, MoveReplicaReply
from odradek.node.bus.reply import Reply
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
from odradek.storage.layout import directory_of


async def handle_alter_replica_log_dirs(
    request: AlterReplicaLogDirsRequest, context: RequestContext, services: Services
) -> AlterReplicaLogDirsResponse:
    """Begin to move each replica to the requested directory, unless it is there. Answers when the
    moves have begun. If a partition is named for several directories the last one counts, as in
    Kafka."""
    is_allowed = services.authorizer.is_cluster_allowed(context, AclOperation.ALTER)
    wanted: dict[str, dict[int, str]] = {}
    pace = LoopYielder(context)
    for directory in request.dirs:
        for topic in directory.topics:
            paths = wanted.setdefault(topic.name, {})
            for index in topic.partitions:
                await pace.step()
                paths[index] = directory.path
    codes: dict[tuple[str, int], ErrorCode | Reply[MoveReplicaReply]] = {}
    for name, paths in wanted.items():
        for index, path in paths.items():
            await pace.step()
            codes[name, index] = (
                _begin_move(path, name, index, services)
                if is_allowed
                else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            )
    topics: dict[str, TopicPartitionResults] = {}
    for (name, index), code in codes.items():
        await pace.step()
        error_code = code if isinstance(code, ErrorCode) else (await code).error_code
        result = PartitionResult(partition_index=index, error_code=error_code)
        topics.setdefault(name, TopicPartitionResults(name=name)).partitions.append(result)
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def _begin_move(
    path: str, name: str, index: int, services: Services
) -> ErrorCode | Reply[MoveReplicaReply]:
    paths = _log_dirs(services)
    if path not in paths:
        return ErrorCode.LOG_DIR_NOT_FOUND
    place = paths.index(path)
    if place in services.logs.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if _is_cordoned(path, services):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT
    topic = services.image.topics_by_name.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    state = topic.partitions[index]
    is_here = services.node_id in state.replicas
    if is_here and services.logs.offline and services.logs.locate(topic.topic_id, index) is None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if len(paths) == 1:
        return ErrorCode.NONE if is_here else ErrorCode.REPLICA_NOT_AVAILABLE
    # A worker remembers it for a replica that is not here yet.
    store = services.logs.store_index(topic.topic_id, index)
    return services.worker_client.send(
        MoveReplica(UNSENT, store, 0, topic.topic_id, index, directory=place)
    )


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
    held: list[dict[str, list[DescribeLogDirsPartition]]] = [{} for _ in services.logs.folders]
    pace = LoopYielder(context)
    for name, indexes in requested.items():
        await pace.step()
        topic = by_name.get(name)
        if topic is None:
            continue
        for index in sorted(indexes):
            await pace.step()
            state = services.image.partition(topic.topic_id, index)
            if state is None or services.node_id not in state.replicas:
                continue  # the log of a replica that has moved away, to be deleted
            log = services.logs.open(topic.topic_id, index)
            if log is None:
                continue
            held[directory_of(log.store)].setdefault(name, []).append(
                DescribeLogDirsPartition(
                    partition_index=index, partition_size=log.reader.size_bytes(log.number)
                )
            )
            future = services.logs.open_future(topic.topic_id, index)
            if future is not None:
                end = log.reader.status.log_end_offset(log.number)
                held[directory_of(future.store)].setdefault(name, []).append(
                    DescribeLogDirsPartition(
                        partition_index=index,
                        partition_size=future.reader.size_bytes(future.number),
                        offset_lag=max(0, end - future.reader.status.log_end_offset(future.number)),
                        is_future_key=True,
                    )
                )
    return DescribeLogDirsResponse(
        results=[_describe(place, topics, services) for place, topics in enumerate(held)]
    )


def _describe(
    place: int, topics: dict[str, list[DescribeLogDirsPartition]], services: Services
) -> DescribeLogDirsResult:
    """The directory at a place of log.dirs, with the partitions in it."""
    path = _log_dirs(services)[place]
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return DescribeLogDirsResult(log_dir=path, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    if place in services.logs.offline:
        return DescribeLogDirsResult(log_dir=path, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return DescribeLogDirsResult(
        error_code=(ErrorCode.KAFKA_STORAGE_ERROR if services.storage_problem else ErrorCode.NONE),
        log_dir=path,
        topics=[
            DescribeLogDirsTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
        total_bytes=usage.total,
        usable_bytes=usage.free,
        is_cordoned=_is_cordoned(path, services),
    )


def _is_cordoned(path: str, services: Services) -> bool:
    """Whether no replica may be placed in a log directory (KIP-1066)."""
    cordoned = services.metadata.broker_settings().cordoned_log_dirs
    return path in cordoned or ANY_LOG_DIR in cordoned


def _log_dirs(services: Services) -> list[str]:
    """The paths of the log directories, in the order of log.dirs."""
    return [str(folder.parent) for folder in services.logs.folders]
