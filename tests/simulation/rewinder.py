"""Rewinds a group while its members commit and faults are injected.

Each rewind is of some partitions, and jumps further than members ever get by committing. So a
member that sees a jump of another partition has seen too much. A member that sees an offset below
that of an answered rewind has seen an older commit: the checker's rule that an acknowledged offset
is never lost holds exactly if old commits never win.
"""

from collections.abc import Callable
from typing import Final

from odradek.coordinator.group.rewind.requests import RewindGroup, RewindPosition, RewindResult
from odradek.coordinator.outcome import ErrorReply
from odradek.coordinator.ownership import shard_of
from odradek.node.bus.reply import Reply
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import ZERO_UUID, Uuid
from tests.simulation.clients import PATIENCE_MS, TOPIC, ClientCluster, SimulatedClient
from tests.simulation.cluster_node import ClusterNode

LEAP: Final = 1_000_000
_TIMEOUT_MS: Final = 1_200
_LAG_MS: Final = 2 * PATIENCE_MS
"""The longest delay of a request after its timeout. If it arrived after the next rewind, it
would be another rewind."""


class Rewinder(SimulatedClient):
    """See the module's docstring. A rewind is repeated until it is answered."""

    def __init__(
        self,
        cluster: ClientCluster,
        group_id: str,
        group_topic_id: bytes,
        count: int,
        topic_id: Uuid = ZERO_UUID,
    ) -> None:
        super().__init__(cluster)
        self.group_id = group_id
        self.group_topic_id = group_topic_id
        self.topic_id = topic_id
        self.partitions = range(count)
        self.rewind_count = 0
        self._named: list[int] = []
        self._number = 0
        self._is_asking = False
        self._lost_at_ms = -_LAG_MS

    def act(self) -> None:
        """Send a rewind, unless a response is pending."""
        if self.is_waiting:
            return
        if not self._is_asking and self.simulation.now_ms < self._lost_at_ms + _LAG_MS:
            return
        node_id = self.leader((self.group_topic_id, shard_of(self.group_id, 1)))
        if node_id is None:
            return
        if not self._is_asking:
            self._is_asking = True
            self._number += 1
            count = self.random.randint(1, len(self.partitions))
            self._named = self.random.sample(self.partitions, count)
            for partition in self._named:
                self.cluster.checker.attempts_offset(self.group_id, partition, self._offset)
        request = RewindGroup(
            group_id=self.group_id,
            rewind_id=self._number.to_bytes(16, "big"),
            positions=tuple(
                RewindPosition(
                    topic=TOPIC,
                    topic_id=self.topic_id,
                    partition=partition,
                    start_offset=0,
                    end_offset=2**60,
                    offset=self._offset,
                )
                for partition in self._named
            ),
            timeout_ms=_TIMEOUT_MS,
        )

        def what(node: ClusterNode, answer: Callable[[object], None]) -> None:
            reply: Reply[object] = node.router.coordinate(self.group_id, request, 0)
            reply.on_done(lambda: answer(reply.result()))

        self.ask(node_id, what, self._answered)

    @property
    def _offset(self) -> int:
        return LEAP * self._number

    def _answered(self, response: object) -> None:
        if response is None or isinstance(response, ErrorReply):
            self._lost_at_ms = self.simulation.now_ms
            return
        assert isinstance(response, RewindResult)
        if response.error_code is ErrorCode.OPERATION_NOT_ATTEMPTED:
            # It could not be written, and a repeated request would not help.
            self._is_asking = False
        if response.error_code is not ErrorCode.NONE:
            return
        self._is_asking = False
        self.rewind_count += 1
        for partition in self._named:
            self.cluster.checker.offset_committed(self.group_id, partition, self._offset)
