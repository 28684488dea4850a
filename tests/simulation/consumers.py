"""Members of the protocols with heartbeats (KIP-848, KIP-1071), as client libraries implement them.

A member sends heartbeats with its owned partitions. After one without a response it sends a full
heartbeat, whose response has its whole assignment. With a new assignment it first revokes what is
not in it; that takes a while, in which it continues. Then it adds the new partitions. The
differences between consumers and threads of Kafka Streams are in a `Dialect`.
"""

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import NamedTuple, Protocol

from odradek.coordinator.group.requests import ConsumerHeartbeat
from odradek.coordinator.group.streams.requests import StreamsHeartbeatResult
from odradek.coordinator.outcome import ErrorReply
from odradek.coordinator.ownership import shard_of
from odradek.node.bus.reply import Reply
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.messages.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupHeartbeatSubtopology,
    StreamsGroupHeartbeatTopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
)
from tests.simulation.clients import TOPIC, ClientCluster, SimulatedClient
from tests.simulation.cluster_node import ClusterNode
from tests.simulation.ownership import CONSUMER_GROUP, Place

CONSUMERS = CONSUMER_GROUP
STREAMS = "streams"
CHANGELOG = "changelog"
SUBTOPOLOGY = "0"
REBALANCE_TIMEOUT_MS = 1_200
_REVOCATION_MS_MAX = 250
_JOIN = 0
_LEAVE = -1
_VERSION = 1
_PROCESS_COUNT = 2
_TELLING_SHARE = 0.3
_FAR_BEHIND = 50_000


class AssignmentResponse(NamedTuple):
    """The content of a response; `assigned` is None if it has no assignment."""

    error_code: int
    epoch: int
    assigned: frozenset[Place] | None


class Dialect(Protocol):
    """The heartbeats of one type of group."""

    group_id: str

    def heartbeat(
        self, member_id: str, epoch: int, owned: frozenset[Place], *, is_full: bool
    ) -> object: ...

    def told(self, response: object) -> AssignmentResponse: ...


class ConsumerDialect:
    """KIP-848."""

    def __init__(self, topic_id: bytes) -> None:
        self.group_id = CONSUMERS
        self._topic_id = topic_id

    def heartbeat(
        self, member_id: str, epoch: int, owned: frozenset[Place], *, is_full: bool
    ) -> ConsumerHeartbeat:
        """The request as the handler passes it to the coordinator."""
        indexes = sorted(place.number for place in owned)
        mine = TopicIdPartitions(topic_id=self._topic_id, partitions=indexes)
        return ConsumerHeartbeat(
            ConsumerGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=member_id,
                member_epoch=epoch,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if is_full else -1,
                subscribed_topic_names=[TOPIC] if is_full else None,
                topic_partitions=[mine] if indexes else [],
            )
        )

    def told(self, response: object) -> AssignmentResponse:
        """The content of the coordinator's response."""
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        assigned = None
        if response.assignment is not None:
            assigned = frozenset(
                Place(topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            )
        return AssignmentResponse(response.error_code, response.member_epoch, assigned)


class StreamsDialect:
    """KIP-1071: a thread of one of two processes.

    The application has state. Its threads report now and then that tasks are far behind, so that
    warm-up tasks are assigned before active ones move.
    """

    def __init__(self, number: int, random: Random) -> None:
        self.group_id = STREAMS
        self._process_id = f"process-{number % _PROCESS_COUNT}"
        self._random = random

    def heartbeat(
        self, member_id: str, epoch: int, owned: frozenset[Place], *, is_full: bool
    ) -> StreamsGroupHeartbeatRequest:
        """The request as the handler passes it to the coordinator."""
        tasks: tuple[defaultdict[str, list[int]], ...] = tuple(defaultdict(list) for _ in range(3))
        for place in sorted(owned, key=str):
            assert isinstance(place.part, str)
            tasks[place.role][place.part].append(place.number)
        active, standby, warmup = (
            [TaskIds(subtopology_id=part, partitions=indexes) for part, indexes in role.items()]
            for role in tasks
        )
        request = StreamsGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=member_id,
            member_epoch=epoch,
            process_id=self._process_id,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            active_tasks=active,
            standby_tasks=standby,
            warmup_tasks=warmup,
        )
        if epoch == _JOIN:
            request.topology = _topology()
        if self._random.random() < _TELLING_SHARE:
            request.task_offsets, request.task_end_offsets = [], []
            for place in sorted(owned, key=str):
                lag = self._random.choice((0, _FAR_BEHIND))
                request.task_offsets.append(_offset(place.number, _FAR_BEHIND - lag))
                request.task_end_offsets.append(_offset(place.number, _FAR_BEHIND))
        return request

    def told(self, response: object) -> AssignmentResponse:
        """The content of the coordinator's response."""
        assert isinstance(response, StreamsHeartbeatResult)
        answer: StreamsGroupHeartbeatResponse = response.response
        roles = (answer.active_tasks, answer.standby_tasks, answer.warmup_tasks)
        assigned = None
        if answer.active_tasks is not None:
            assigned = frozenset(
                Place(tasks.subtopology_id, index, role)
                for role, told in enumerate(roles)
                for tasks in told or ()
                for index in tasks.partitions
            )
        return AssignmentResponse(answer.error_code, answer.member_epoch, assigned)


def _offset(partition: int, offset: int) -> TaskOffset:
    return TaskOffset(subtopology_id=SUBTOPOLOGY, partition=partition, offset=offset)


def _topology() -> StreamsGroupHeartbeatTopology:
    part = StreamsGroupHeartbeatSubtopology(
        subtopology_id=SUBTOPOLOGY,
        source_topics=[TOPIC],
        state_changelog_topics=[TopicInfo(name=CHANGELOG)],
    )
    return StreamsGroupHeartbeatTopology(epoch=0, subtopologies=[part])


class ConsumerMember(SimulatedClient):
    """See the module's docstring. After it has left it joins again with a new member id."""

    def __init__(
        self, cluster: ClientCluster, number: int, dialect: Dialect, group_topic: bytes
    ) -> None:
        super().__init__(cluster)
        self.number = number
        self.owned: frozenset[Place] = frozenset()
        self.epoch = 0
        self.silent_until_ms = 0
        self.beat_count = 0
        self._dialect = dialect
        self._group_id = dialect.group_id
        self._group_topic = group_topic
        self._coordinator: int | None = None
        self._lives = 0
        self._is_revoking = False
        self._has_missed_an_answer = False

    @property
    def member_id(self) -> str:
        return f"{self._group_id}-{self.number}-{self._lives}"

    @property
    def is_stable(self) -> bool:
        """Whether it is a member, and has applied its assignment."""
        return self.epoch > 0 and not self._is_revoking

    def act(self) -> None:
        """Send a heartbeat, unless a response is pending."""
        if self.is_waiting or self.simulation.now_ms < self.silent_until_ms:
            return
        if self._coordinator is None:
            self._coordinator = self.leader((self._group_topic, shard_of(self._group_id, 1)))
            if self._coordinator is None:
                return
        self._call(self._heartbeat(self.epoch), self._answered)

    def leave(self) -> None:
        """Leave, without waiting for the response."""
        if self.is_waiting or not self.epoch or self._coordinator is None:
            return
        self._call(self._heartbeat(_LEAVE), lambda _response: None)
        self._give_up(self.owned)
        self._lives += 1
        self.epoch, self._is_revoking = _JOIN, False

    def _heartbeat(self, epoch: int) -> object:
        is_full = epoch == _JOIN or self._has_missed_an_answer
        return self._dialect.heartbeat(self.member_id, epoch, self.owned, is_full=is_full)

    def _call(self, request: object, then: Callable[[object], None]) -> None:
        assert self._coordinator is not None

        def what(node: ClusterNode, answer: Callable[[object], None]) -> None:
            reply: Reply[object] = node.router.coordinate(self._group_id, request, _VERSION)
            reply.on_done(lambda: answer(reply.result()))

        def answered(response: object) -> None:
            self._has_missed_an_answer = response is None or isinstance(response, ErrorReply)
            if self._has_missed_an_answer:
                self._coordinator = None
            else:
                then(response)

        self.ask(self._coordinator, what, answered)

    def _answered(self, response: object) -> None:
        error_code, epoch, assigned = self._dialect.told(response)
        ownership = self.cluster.checker.ownership
        if error_code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ):
            ownership.refused(self._group_id, self.member_id, error_code)
            self.owned, self.epoch, self._is_revoking = frozenset(), _JOIN, False
            return
        assert not error_code, response
        self.beat_count += 1
        self.epoch = epoch
        ownership.told(self._group_id, self.member_id, epoch, assigned)
        if assigned is None:
            return
        if self.owned <= assigned:
            self._take(assigned)
        else:
            self._is_revoking = True
            lives, epoch = self._lives, self.epoch
            delay_ms = self.random.randrange(_REVOCATION_MS_MAX)

            def revoke() -> None:
                if self._is_revoking and (lives, epoch) == (self._lives, self.epoch):
                    self._give_up(self.owned - assigned)
                    self._take(assigned)

            self.simulation.after(delay_ms, revoke)

    def _give_up(self, places: frozenset[Place]) -> None:
        self.cluster.checker.ownership.gives_up(self._group_id, self.member_id, places)
        self.owned -= places

    def _take(self, assigned: frozenset[Place]) -> None:
        self._is_revoking = False
        new = assigned - self.owned
        self.owned = assigned
        self.cluster.checker.ownership.takes(self._group_id, self.member_id, new)
