"""A cluster that only moves replicas: real sockets, the real controller, and no logs.

It is for tools that watch a reassignment; the test controls the copying. Each
ListPartitionReassignments advances every reassignment by `step_bytes`; one that has copied
everything completes. Before a request is answered, `before` may change the cluster.
"""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from struct import Struct
from typing import Final

from odradek.cluster.controller.commands import (
    AlterPartition,
    AlterPartitionReassignments,
    ConfigOperation,
    ConfigsReply,
    DeleteTopics,
    ElectLeaders,
    IncrementalAlterConfigs,
    InSyncChange,
    InSyncReplica,
    PartitionReference,
    PartitionsReply,
    Reassignment,
    RegisterBroker,
    ResourceOperations,
    TopicReference,
)
from odradek.cluster.controller.reassignment import ongoing_reassignments
from odradek.cluster.metadata.image import BrokerListener, ConfigResourceType, PartitionImage
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import (
    decode_request,
    decode_request_header,
    encode_response,
    encode_response_header,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from odradek.protocol.messages.configs import (
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from odradek.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.protocol.messages.partitions import (
    DetailedPartitionResult,
    DetailedTopicResults,
    PartitionResult,
    TopicPartitionResults,
)
from tests.support.controller_harness import ControllerHarness, topic_id

_LENGTH: Final = Struct(">i")
_DYNAMIC: Final = {ConfigResourceType.TOPIC: 1, ConfigResourceType.BROKER: 2}


class StandInCluster:
    """Brokers 0 to `count` - 1, all of them serving; `requests` has all requests by broker."""

    def __init__(self, count: int, racks: str = "") -> None:
        self.harness = ControllerHarness(brokers=0)
        self.step_bytes = 1 << 40
        self.sizes: dict[tuple[str, int], int] = {}
        self.copied: dict[tuple[str, int], int] = {}
        self.log_dirs = ["/data"]
        self.directories: dict[tuple[int, str, int], str] = {}
        """Of replicas, also future ones, that are not in the first directory."""
        self.requests: list[tuple[int, object]] = []
        self.before: Callable[[object], None] = lambda _request: None
        self._lock = threading.Lock()
        self._servers: dict[int, _Server] = {}
        for node in range(count):
            server = _Server(self, node)
            self._servers[node] = server
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            self.harness.do(
                RegisterBroker(
                    broker_id=node,
                    incarnation_id=topic_id(1000 + node),
                    listeners=(BrokerListener("PLAINTEXT", *server.server_address),),
                    rack=racks[node] if racks else None,
                )
            )

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join("{}:{}".format(*s.server_address) for s in self._servers.values())

    def has(self, topic: str, *replicas: Sequence[int], size: int = 0) -> None:
        """Create a topic with these replicas, all in sync, led by the first."""
        states = [PartitionImage(tuple(r), tuple(r), r[0]) for r in replicas]
        self.harness.place(topic, len(self.harness.image.topics_by_id) + 1, *states)
        for number in range(len(replicas)):
            self.sizes[topic, number] = size

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.harness.topics(DeleteTopics((TopicReference(topic),)))

    def reassign(self, topic: str, number: int, *replicas: int) -> None:
        """Begin a reassignment."""
        self.harness.do(AlterPartitionReassignments((Reassignment(topic, number, replicas),)))

    def cancel(self, topic: str, number: int) -> None:
        """Cancel a reassignment."""
        self.harness.do(AlterPartitionReassignments((Reassignment(topic, number, None),)))

    def replicas(self, topic: str) -> list[tuple[int, ...]]:
        return [partition.replicas for partition in self.harness.partitions(topic)]

    def configs(self, kind: ConfigResourceType, name: str) -> dict[str, str]:
        return dict(self.harness.image.configs.of(kind, name))

    def hang_up(self, node: int) -> None:
        """A broker closes all connections."""
        for connection in list(self._servers[node].connections):
            # Its own thread may have found out that it has ended.
            with suppress(OSError):
                connection.request.shutdown(socket.SHUT_RDWR)

    def stop(self, node: int) -> None:
        """A broker is stopped, and fenced."""
        self._servers[node].close()
        self.harness.fence(node)

    def close(self) -> None:
        for server in self._servers.values():
            server.close()

    def answer(self, node: int, request: object) -> object:
        """The response of a broker."""
        with self._lock:
            self.requests.append((node, request))
            self.before(request)
            return _ANSWERS[type(request)](self, node, request)

    # -- what it answers ---------------------------------------------------------------------------

    def _versions(self, _node: int, _request: ApiVersionsRequest) -> ApiVersionsResponse:
        keys = [key for key in APIS.values() if key.request in _ANSWERS]
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=k.key, min_version=k.min_version, max_version=k.max_version)
                for k in keys
            ]
        )

    def _cluster(self, _node: int, _request: DescribeClusterRequest) -> DescribeClusterResponse:
        brokers = []
        for broker in self.harness.image.brokers.values():
            listener = broker.listeners[0]
            brokers.append(
                DescribeClusterBroker(
                    broker_id=broker.broker_id,
                    host=listener.host,
                    port=listener.port,
                    rack=broker.rack,
                    is_fenced=broker.is_fenced,
                )
            )
        return DescribeClusterResponse(cluster_id="cluster", brokers=brokers)

    def _metadata(self, _node: int, request: MetadataRequest) -> MetadataResponse:
        image = self.harness.image
        names = list(image.topics_by_name)
        if request.topics is not None:
            names = [topic.name for topic in request.topics if topic.name is not None]
        topics = []
        for name in names:
            topic = image.topics_by_name.get(name)
            answer = MetadataResponseTopic(name=name, error_code=0 if topic else 3)
            for number, state in enumerate(topic.partitions if topic else ()):
                answer.partitions.append(
                    MetadataResponsePartition(
                        partition_index=number,
                        leader_id=state.leader,
                        replica_nodes=list(state.replicas),
                        isr_nodes=list(state.in_sync_replicas),
                    )
                )
            topics.append(answer)
        return MetadataResponse(topics=topics)

    def _listed(
        self, _node: int, _request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        self._copy()
        topics: dict[str, OngoingTopicReassignment] = {}
        for topic, number, state in ongoing_reassignments(self.harness.image, None):
            entry = topics.setdefault(topic.name, OngoingTopicReassignment(name=topic.name))
            entry.partitions.append(
                OngoingPartitionReassignment(
                    partition_index=number,
                    replicas=list(state.replicas),
                    adding_replicas=list(state.adding_replicas),
                    removing_replicas=list(state.removing_replicas),
                )
            )
        return ListPartitionReassignmentsResponse(topics=list(topics.values()))

    def _copy(self) -> None:
        """Copy a step of every reassignment that can continue."""
        for topic, number, state in list(ongoing_reassignments(self.harness.image, None)):
            brokers = self.harness.image.brokers
            if any(brokers[node].is_fenced for node in state.adding_replicas):
                continue
            name = (topic.name, number)
            self.copied[name] = self.copied.get(name, 0) + self.step_bytes
            if self.copied[name] >= self.sizes[name]:
                del self.copied[name]
                in_sync = {*state.in_sync_replicas, *state.adding_replicas}
                change = InSyncChange(
                    topic.topic_id,
                    number,
                    state.leader_epoch,
                    state.partition_epoch,
                    tuple(InSyncReplica(node, -1) for node in sorted(in_sync)),
                )
                leader = brokers[state.leader]
                self.harness.do(AlterPartition(leader.broker_id, leader.broker_epoch, (change,)))

    def _altered(
        self, _node: int, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        wanted = tuple(
            Reassignment(
                topic.name,
                partition.partition_index,
                None if partition.replicas is None else tuple(partition.replicas),
            )
            for topic in request.topics
            for partition in topic.partitions
        )
        reply = self.harness.do(AlterPartitionReassignments(wanted))
        assert isinstance(reply, PartitionsReply)
        return AlterPartitionReassignmentsResponse(
            responses=[
                DetailedTopicResults(
                    name=result.topic,
                    partitions=[
                        DetailedPartitionResult(
                            partition_index=result.partition,
                            error_code=result.error_code,
                            error_message=result.error_message,
                        )
                    ],
                )
                for result in reply.results
            ],
        )

    def _elected(self, _node: int, request: ElectLeadersRequest) -> ElectLeadersResponse:
        partitions = None
        if request.topic_partitions is not None:
            partitions = tuple(
                PartitionReference(topic.name, number)
                for topic in request.topic_partitions
                for number in topic.partitions
            )
        reply = self.harness.do(ElectLeaders(request.election_type, partitions))
        assert isinstance(reply, PartitionsReply)
        return ElectLeadersResponse(
            replica_election_results=[
                DetailedTopicResults(
                    name=result.topic,
                    partitions=[
                        DetailedPartitionResult(
                            partition_index=result.partition,
                            error_code=result.error_code,
                            error_message=result.error_message,
                        )
                    ],
                )
                for result in reply.results
            ]
        )

    def _log_dirs(self, node: int, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        image = self.harness.image
        asked = None
        if request.topics is not None:
            asked = {(topic.name, n) for topic in request.topics for n in topic.partitions}
        cordoned = self.configs(ConfigResourceType.BROKER, str(node)).get("cordoned.log.dirs")
        folders = {
            path: DescribeLogDirsResult(log_dir=path, is_cordoned=bool(cordoned))
            for path in self.log_dirs
        }
        for topic in image.topics_by_name.values():
            held: dict[str, DescribeLogDirsTopic] = {}
            for number, state in enumerate(topic.partitions):
                name = (topic.name, number)
                if node not in state.replicas or not (asked is None or name in asked):
                    continue
                size = self.sizes[name]
                if node in state.adding_replicas:
                    size = self.copied.get(name, 0)
                path = self.directories.get((node, *name), self.log_dirs[0])
                held.setdefault(path, DescribeLogDirsTopic(name=topic.name)).partitions.append(
                    DescribeLogDirsPartition(partition_index=number, partition_size=size)
                )
            for path, described in held.items():
                folders[path].topics.append(described)
        return DescribeLogDirsResponse(results=list(folders.values()))

    def _moved(self, node: int, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
        """A replica is in another directory at once; one that is not here will be there."""
        results = []
        for folder in request.dirs:
            for topic in folder.topics:
                answer = TopicPartitionResults(name=topic.name)
                for number in topic.partitions:
                    code = ErrorCode.LOG_DIR_NOT_FOUND
                    if folder.path in self.log_dirs:
                        self.directories[node, topic.name, number] = folder.path
                        is_here = node in self.replicas(topic.name)[number]
                        code = ErrorCode.NONE if is_here else ErrorCode.REPLICA_NOT_AVAILABLE
                    answer.partitions.append(
                        PartitionResult(partition_index=number, error_code=code)
                    )
                results.append(answer)
        return AlterReplicaLogDirsResponse(results=results)

    def _described(self, _node: int, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        results = []
        for resource in request.resources:
            kind = ConfigResourceType(resource.resource_type)
            configs = self.configs(kind, resource.resource_name)
            results.append(
                DescribeConfigsResult(
                    error_message=None,
                    resource_type=kind,
                    resource_name=resource.resource_name,
                    configs=[
                        DescribeConfigsResourceResult(
                            name=key, value=configs[key], config_source=_DYNAMIC[kind]
                        )
                        for key in resource.configuration_keys or ()
                        if key in configs
                    ],
                )
            )
        return DescribeConfigsResponse(results=results)

    def _configured(
        self, _node: int, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        reply = self.harness.do(
            IncrementalAlterConfigs(
                tuple(
                    ResourceOperations(
                        resource.resource_type,
                        resource.resource_name,
                        tuple(
                            ConfigOperation(config.name, config.config_operation, config.value)
                            for config in resource.configs
                        ),
                    )
                    for resource in request.resources
                )
            )
        )
        assert isinstance(reply, ConfigsReply)
        return IncrementalAlterConfigsResponse(
            responses=[
                AlterConfigsResourceResponse(
                    error_code=result.error_code,
                    error_message=result.error_message,
                    resource_type=result.resource_type,
                    resource_name=result.resource_name,
                )
                for result in reply.results
            ]
        )


_ANSWERS: Final[dict[type, Callable[..., object]]] = {
    ApiVersionsRequest: StandInCluster._versions,
    DescribeClusterRequest: StandInCluster._cluster,
    MetadataRequest: StandInCluster._metadata,
    ListPartitionReassignmentsRequest: StandInCluster._listed,
    AlterPartitionReassignmentsRequest: StandInCluster._altered,
    ElectLeadersRequest: StandInCluster._elected,
    DescribeLogDirsRequest: StandInCluster._log_dirs,
    AlterReplicaLogDirsRequest: StandInCluster._moved,
    DescribeConfigsRequest: StandInCluster._described,
    IncrementalAlterConfigsRequest: StandInCluster._configured,
}


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, cluster: StandInCluster, node: int) -> None:
        self.cluster = cluster
        self.node = node
        self.connections: set[socketserver.BaseRequestHandler] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self.cluster.hang_up(self.node)


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.connections.add(self)
        while len(start := self.rfile.read(4)) == 4:
            frame = memoryview(self.rfile.read(*_LENGTH.unpack(start)))
            header = decode_request_header(frame)
            key, version = ApiKey(header.api_key), header.api_version
            request = decode_request(key, version, frame, header.body_offset)
            if type(request) not in _ANSWERS:
                break  # as a broker that does not know the API
            answer = self.server.cluster.answer(self.server.node, request)
            head = encode_response_header(key, version, header.correlation_id)
            body = b"".join((head, *encode_response(key, version, answer)))
            self.wfile.write(_LENGTH.pack(len(body)) + body)
        self.server.connections.discard(self)


@contextmanager
def stand_in_cluster(count: int, racks: str = "") -> Iterator[StandInCluster]:
    """A cluster that is closed at the end of the block."""
    cluster = StandInCluster(count, racks)
    try:
        yield cluster
    finally:
        cluster.close()
