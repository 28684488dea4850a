"""Clients of the cluster: producers, consumers and members of groups, as client libraries implement
them.

They send requests to the node that they believe to be leader or coordinator, wait for a response up
to a timeout, and repeat the request elsewhere. Requests and responses may be lost, as when a
connection breaks, but arrive at most once. The checker hears of everything that was acknowledged.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Protocol

from odradek.cluster.metadata.image import NO_LEADER
from odradek.coordinator.group.requests import FetchOffsets
from odradek.coordinator.outcome import ErrorReply
from odradek.coordinator.ownership import shard_of
from odradek.node.bus.reply import Reply
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequestTopic,
    OffsetFetchResponseGroup,
)
from odradek.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from odradek.protocol.records import Record, build_batch
from tests.simulation.broker import Fetch, Fetched, Produce, Produced, SimulatedRouter
from tests.simulation.cluster_checker import ClusterChecker
from tests.simulation.cluster_node import ClusterNode
from tests.simulation.simulation import Simulation
from tests.simulation.store import Identity

PATIENCE_MS = 2_000
_BACK_OFF_MS = 60
TOPIC = "t"


class ClientCluster(Protocol):
    """The cluster as clients see it."""

    simulation: Simulation
    checker: ClusterChecker
    loss_share: float

    @property
    def nodes(self) -> Mapping[int, ClusterNode]: ...


class SimulatedClient:
    """Sends one request at a time to one node, with a timeout."""

    def __init__(self, cluster: ClientCluster) -> None:
        self.cluster = cluster
        self.simulation = cluster.simulation
        self.random = cluster.simulation.random
        self._asked = 0
        self._leader_epoch = -1
        self.is_waiting = False

    def some_router(self) -> SimulatedRouter | None:
        """The router of any running node."""
        running = [n for i, n in self.cluster.nodes.items() if self.simulation.is_running(i)]
        return self.random.choice(running).router if running else None

    def leader(self, identity: Identity) -> int | None:
        """The leader in the metadata of a node that is not behind what this client has seen
        (KIP-320)."""
        router = self.some_router()
        if router is None:
            return None
        leader, epoch = router.leader_of(identity)
        if leader == NO_LEADER or epoch < self._leader_epoch:
            return None
        self._leader_epoch = epoch
        return leader

    def ask(
        self,
        node_id: int,
        what: Callable[[ClusterNode, Callable[[object], None]], None],
        answer: Callable[[object], None],
        *,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        """Send a request to a node; `answer` gets the response, None after a timeout."""
        simulation = self.simulation
        self._asked = number = self._asked + 1
        self.is_waiting = True

        def take(response: object) -> None:
            if self.is_waiting and self._asked == number:
                self.is_waiting = False
                answer(response)

        def reply(response: object) -> None:
            self.cluster.checker.replied((id(self), number))
            if not self._is_lost():
                simulation.after(self._delay_ms(), lambda: take(response))

        def arrive() -> None:
            self.cluster.checker.asked((id(self), number), node_id)
            what(self.cluster.nodes[node_id], reply)

        if not self._is_lost():
            simulation.after_on(node_id, self._delay_ms(), arrive)
        simulation.after(patience_ms, lambda: take(None))

    def _is_lost(self) -> bool:
        return self.random.random() < self.cluster.loss_share

    def _delay_ms(self) -> int:
        return self.simulation.network.delay_of_a_stream_ms()


class Producer(SimulatedClient):
    """Writes to one partition, one batch at a time; with acks=all it is idempotent."""

    def __init__(self, cluster: ClientCluster, number: int, identity: Identity, acks: int) -> None:
        super().__init__(cluster)
        self.number = number
        self.identity = identity
        self.acks = acks
        self.acknowledged_count = 0
        self._sequence = 0
        self._count = 0
        self._batch = b""

    def act(self) -> None:
        """Write one more batch, unless the outcome of the last one is open."""
        if not self.is_waiting and not self._batch:
            self._count += 1
            values = [f"{self.number}-{self._count}-{i}" for i in range(self.random.randint(1, 3))]
            is_idempotent = self.acks == -1
            self._batch = build_batch(
                [Record(i, 0, b"k", value.encode()) for i, value in enumerate(values)],
                producer_id=self.number if is_idempotent else -1,
                producer_epoch=0 if is_idempotent else -1,
                base_sequence=self._sequence if is_idempotent else -1,
            )
            self._size = len(values)
            self._send()

    def _send(self) -> None:
        leader = self.leader(self.identity)
        if leader is None:
            self.simulation.after(_BACK_OFF_MS, self._send)
            return
        request = Produce(self.identity, self._batch, self.acks)
        self.ask(leader, lambda node, reply: node.router.produce(request, reply), self._answered)

    def _answered(self, response: object) -> None:
        if isinstance(response, Produced) and response.error_code == ErrorCode.NONE:
            if self.acks == -1:
                self.acknowledged_count += 1
                self.cluster.checker.acknowledged(
                    self.identity, response.base_offset, self._batch, self._size
                )
            self._next()
            return
        if isinstance(response, Produced):
            self.cluster.checker.refused(self.identity, self.number, response.error_code)
        if self.acks == -1:
            self.simulation.after(1 + self.random.randrange(_BACK_OFF_MS), self._send)
        else:
            self._next()

    def _next(self) -> None:
        self._sequence += self._size
        self._batch = b""


class SimulatedConsumer(SimulatedClient):
    """Reads one partition from its beginning."""

    def __init__(self, cluster: ClientCluster, identity: Identity) -> None:
        super().__init__(cluster)
        self.identity = identity
        self.offset = 0

    def act(self) -> None:
        """Read on."""
        leader = None if self.is_waiting else self.leader(self.identity)
        if leader is None:
            return
        request = Fetch(self.identity, self.offset)
        self.ask(
            leader,
            lambda node, reply: reply(node.router.fetch(request)),
            lambda response: self._answered(leader, response),
        )

    def _answered(self, node_id: int, response: object) -> None:
        if isinstance(response, Fetched) and response.error_code == ErrorCode.NONE:
            self.cluster.checker.read(self.identity, response)
            if response.batches:
                self.offset = response.batches[-1].end_offset
        elif isinstance(response, Fetched) and self.random.random() < 0.1:
            self.offset = 0


class _Phase(Enum):
    JOINING = auto()
    SYNCING = auto()
    FETCHING = auto()
    STABLE = auto()


class SimulatedMember(SimulatedClient):
    """A member of a classic group. It owns the partitions that the group's leader assigns to it,
    and commits rising offsets."""

    def __init__(self, cluster: ClientCluster, group_id: str, topic_id: bytes, count: int) -> None:
        super().__init__(cluster)
        self.group_id = group_id
        self.partitions = range(count)
        self.group_topic_id = topic_id
        self.shard_count = 1
        self.phase = _Phase.JOINING
        self.generation = -1
        self.member_id = ""
        self.owned: tuple[int, ...] = ()
        self.silent_until_ms = 0
        self.commit_count = 0
        self._positions: dict[int, int] = {}
        self._coordinator: int | None = None
        self._others: Sequence[str] = ()
        self._heartbeats = 0

    @property
    def is_stable(self) -> bool:
        """Whether it has an assignment, as far as it knows."""
        return self.phase is _Phase.STABLE

    def act(self) -> None:
        """Continue, unless a response is pending."""
        if self.is_waiting or self.simulation.now_ms < self.silent_until_ms:
            return
        if self._coordinator is None:
            shard = shard_of(self.group_id, self.shard_count)
            self._coordinator = self.leader((self.group_topic_id, shard))
            if self._coordinator is None:
                return
        match self.phase:
            case _Phase.JOINING:
                self._join()
            case _Phase.SYNCING:
                self._sync()
            case _Phase.FETCHING:
                self._fetch()
            case _Phase.STABLE:
                self._heartbeats += 1
                if self._heartbeats % 2 and self.owned:
                    self._commit()
                else:
                    self._send_heartbeat()

    def leave(self) -> None:
        """Leave, and join again with a new member id."""
        if self.is_waiting or not self.member_id or self._coordinator is None:
            return
        request = LeaveGroupRequest(
            group_id=self.group_id, members=[MemberIdentity(member_id=self.member_id)]
        )
        self._forget()
        self._call(request, 5, lambda _response: None)

    def _forget(self) -> None:
        self.member_id, self.owned, self.phase = "", (), _Phase.JOINING

    def _call(self, request: object, version: int, then: Callable[[object], None]) -> None:
        assert self._coordinator is not None
        group_id = self.group_id

        def what(node: ClusterNode, answer: Callable[[object], None]) -> None:
            reply: Reply[object] = node.router.coordinate(group_id, request, version)
            reply.on_done(lambda: answer(reply.result()))

        def answered(response: object) -> None:
            if response is None or isinstance(response, ErrorReply):
                self._coordinator = None
            else:
                then(response)

        self.ask(self._coordinator, what, answered)

    def _join(self) -> None:
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=800,
            rebalance_timeout_ms=800,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )

        def joined(response: object) -> None:
            assert isinstance(response, JoinGroupResponse)
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
            elif response.error_code:
                self._on_error(response.error_code)
            else:
                self.member_id, self.generation = response.member_id, response.generation_id
                self._others = [member.member_id for member in response.members]
                self.phase = _Phase.SYNCING

        self._call(request, 9, joined)

    def _sync(self) -> None:
        assignments = []
        for index, member_id in enumerate(self._others):
            mine = bytes(p for p in self.partitions if p % len(self._others) == index)
            assignments.append(SyncGroupRequestAssignment(member_id=member_id, assignment=mine))
        generation = self.generation
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )

        def synced(response: object) -> None:
            assert isinstance(response, SyncGroupResponse)
            if response.error_code:
                self._on_error(response.error_code)
                return
            self.owned = tuple(response.assignment)
            self.cluster.checker.owns(self.group_id, generation, self.member_id, self.owned)
            self.phase = _Phase.FETCHING

        self._call(request, 5, synced)

    def _fetch(self) -> None:
        checker = self.cluster.checker
        shard = shard_of(self.group_id, self.shard_count)
        identity = (self.group_topic_id, shard)
        coordinator = self._coordinator
        is_true = checker.is_leader(identity, coordinator)
        floors = {p: checker.committed_offset(self.group_id, p) for p in self.owned}
        request = FetchOffsets(
            self.group_id,
            [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=list(self.owned))],
        )

        def fetched(response: object) -> None:
            assert isinstance(response, OffsetFetchResponseGroup)
            # A coordinator that was replaced and does not know it yet may return an old offset, as
            # in Kafka. A real client asks the coordinator that has accepted its join.
            if not is_true or not checker.is_leader(identity, coordinator):
                self._coordinator = None
                return
            for topic in response.topics:
                for found in topic.partitions:
                    index = found.partition_index
                    checker.fetched_offset(
                        self.group_id, index, floors[index], found.committed_offset
                    )
                    self._positions[index] = max(0, found.committed_offset)
            self.phase = _Phase.STABLE

        self._call(request, 8, fetched)

    def _commit(self) -> None:
        checker = self.cluster.checker
        offsets = {p: self._positions[p] + 1 for p in self.owned}
        for partition, offset in offsets.items():
            checker.attempts_offset(self.group_id, partition, offset)
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=p, committed_offset=offset)
                        for p, offset in offsets.items()
                    ],
                )
            ],
        )

        def committed(response: object) -> None:
            assert isinstance(response, OffsetCommitResponse)
            codes = {
                partition.partition_index: partition.error_code
                for topic in response.topics
                for partition in topic.partitions
            }
            for partition, code in codes.items():
                if not code:
                    checker.offset_committed(self.group_id, partition, offsets[partition])
                    self._positions[partition] = offsets[partition]
                    self.commit_count += 1
            failure = next((code for code in codes.values() if code), 0)
            if failure:
                self._on_error(failure)

        self._call(request, 8, committed)

    def _send_heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation, member_id=self.member_id
        )

        def beaten(response: object) -> None:
            assert isinstance(response, HeartbeatResponse)
            if response.error_code:
                self._on_error(response.error_code)

        self._call(request, 4, beaten)

    def _on_error(self, code: int) -> None:
        match code:
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self.phase, self.owned = _Phase.JOINING, ()
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.ILLEGAL_GENERATION:
                self._forget()
            case _:
                self._coordinator = None
