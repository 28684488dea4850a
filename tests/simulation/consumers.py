"""Members of the consumer protocol (KIP-848), as client libraries have them.

A member sends heartbeats, and says in each what it owns; after one without an answer it says
everything, for which it is told its whole assignment. Told of an assignment, it
first gives up what is not in it, which takes a while in which it reads on, and only then takes what
is new.
"""

from collections.abc import Callable

from coordinator.group.requests import Heartbeat
from coordinator.outcome import Refusal
from coordinator.ownership import shard_of
from node.bus.reply import Reply
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
)
from tests.simulation.clients import TOPIC, Client, Cluster
from tests.simulation.cluster_node import ClusterNode
from tests.simulation.ownership import Place

GROUP = "consumers"
REBALANCE_TIMEOUT_MS = 1_200
_REVOCATION_MS_MAX = 250
_LEAVE = -1
_VERSION = 1


class ConsumerMember(Client):
    """See the module's docstring. When it has left it comes back under another id."""

    def __init__(self, cluster: Cluster, number: int, topic_id: bytes, group_topic: bytes) -> None:
        super().__init__(cluster)
        self.number = number
        self.owned: frozenset[Place] = frozenset()
        self.epoch = 0
        self.silent_until_ms = 0
        self.beat_count = 0
        self._topic_id = topic_id
        self._group_topic = group_topic
        self._coordinator: int | None = None
        self._lives = 0
        self._is_revoking = False
        self._has_missed_an_answer = False

    @property
    def member_id(self) -> str:
        return f"consumer-{self.number}-{self._lives}"

    @property
    def is_stable(self) -> bool:
        """Whether it is in the group, and has done what it was told."""
        return self.epoch > 0 and not self._is_revoking

    def act(self) -> None:
        """A heartbeat, unless an answer is waited for."""
        if self.is_waiting or self.simulation.now_ms < self.silent_until_ms:
            return
        if self._coordinator is None:
            self._coordinator = self.leader((self._group_topic, shard_of(GROUP, 1)))
            if self._coordinator is None:
                return
        self._call(self._heartbeat(self.epoch), self._answered)

    def leave(self) -> None:
        """Go; the answer is not waited for."""
        if self.is_waiting or not self.epoch or self._coordinator is None:
            return
        self._call(self._heartbeat(_LEAVE), lambda _response: None)
        self._give_up(self.owned)
        self._lives += 1
        self.epoch, self._is_revoking = 0, False

    def _heartbeat(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        indexes = sorted(index for _, index in self.owned)
        owned = ConsumerGroupHeartbeatTopicPartitions(topic_id=self._topic_id, partitions=indexes)
        is_full = epoch == 0 or self._has_missed_an_answer
        return ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if is_full else -1,
            subscribed_topic_names=[TOPIC] if is_full else None,
            topic_partitions=[owned] if indexes else [],
        )

    def _call(self, request: ConsumerGroupHeartbeatRequest, then: Callable[[object], None]) -> None:
        assert self._coordinator is not None

        def what(node: ClusterNode, answer: Callable[[object], None]) -> None:
            reply: Reply[object] = node.router.coordinate(GROUP, Heartbeat(request), _VERSION)
            reply.on_done(lambda: answer(reply.result()))

        def answered(response: object) -> None:
            self._has_missed_an_answer = response is None or isinstance(response, Refusal)
            if self._has_missed_an_answer:
                self._coordinator = None
            else:
                then(response)

        self.ask(self._coordinator, what, answered)

    def _answered(self, response: object) -> None:
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        ownership = self.cluster.checker.ownership
        if response.error_code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ):
            ownership.refused(GROUP, self.member_id, response.error_code)
            self.owned, self.epoch, self._is_revoking = frozenset(), 0, False
            return
        assert not response.error_code, response
        self.beat_count += 1
        self.epoch = response.member_epoch
        assigned = None
        if response.assignment is not None:
            assigned = frozenset(
                (topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            )
        ownership.told(GROUP, self.member_id, self.epoch, assigned)
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
        self.cluster.checker.ownership.gives_up(GROUP, self.member_id, places)
        self.owned -= places

    def _take(self, assigned: frozenset[Place]) -> None:
        self._is_revoking = False
        new = assigned - self.owned
        self.owned = assigned
        self.cluster.checker.ownership.takes(GROUP, self.member_id, new)
