"""State of a streams group that is in memory only.

It is lost when the shard moves, and restored by the members: they report their task offsets again,
get the endpoints again, are asked again for the description of the topology (KIP-1331), and the
member that requested a shutdown requests it again. Called by `streams.groups`.
"""

from collections.abc import Iterable
from typing import Final

from odradek.coordinator.group.modern.heartbeats import JOIN_GROUP_EPOCH
from odradek.coordinator.group.streams.assignor import TaskId
from odradek.coordinator.group.streams.heartbeats import StreamsHeartbeatOutcome
from odradek.coordinator.group.streams.target_assignment import AssignmentInputs
from odradek.protocol.messages.streams import (
    StreamsGroupHeartbeatRequest,
    TaskOffset,
    TopologyDescription,
)

OFFSET_INTERVAL_MS: Final = 60_000
"""How often members report task offsets: Kafka's task.offset.interval.ms."""
OFFSETS_MAX: Final = 10_000
"""The task offsets that are kept of a member: more than a process has tasks; about a megabyte."""
DESCRIPTION_RETRY_MS: Final = 60_000
"""The time after which another member is asked for the description."""


class TransientState:
    """See the module's docstring."""

    __slots__ = (
        "_description",
        "_description_retry_ms",
        "_lags",
        "delayed_until_ms",
        "end_offsets",
        "endpoint_epoch",
        "offsets",
        "shutdown_requested_by",
    )

    def __init__(self) -> None:
        self.delayed_until_ms = 0
        """Until when no target assignment is made, so that more members can join."""
        self.endpoint_epoch = 0
        """Increases whenever the tasks of a member with an endpoint change."""
        self.shutdown_requested_by: str | None = None
        """The first member that has requested the shutdown of the application."""
        self.offsets: dict[str, list[TaskOffset]] = {}
        self.end_offsets: dict[str, list[TaskOffset]] = {}
        self._lags: dict[str, dict[TaskId, int]] = {}
        self._description: tuple[int, TopologyDescription] | None = None
        self._description_retry_ms = 0

    def start_initial_delay(self, delayed_until_ms: int) -> None:
        """The group's first member joins."""
        self.delayed_until_ms = delayed_until_ms
        self.shutdown_requested_by = None

    def request_shutdown(self, member_id: str) -> None:
        """A member requests the shutdown of the application; the first one is remembered."""
        if self.shutdown_requested_by is None:
            self.shutdown_requested_by = member_id

    def update_task_offsets(self, request: StreamsGroupHeartbeatRequest) -> None:
        """Store a member's task offsets, before its heartbeat is handled."""
        member_id = request.member_id
        if request.member_epoch == JOIN_GROUP_EPOCH:
            self.forget(member_id)
        if request.task_offsets is not None:
            self.offsets[member_id] = request.task_offsets[:OFFSETS_MAX]
        if request.task_end_offsets is not None:
            self.end_offsets[member_id] = request.task_end_offsets[:OFFSETS_MAX]
        if request.task_offsets is not None or request.task_end_offsets is not None:
            ends = _by_task(self.end_offsets.get(member_id, ()))
            self._lags[member_id] = {
                task: ends[task] - offset
                for task, offset in _by_task(self.offsets.get(member_id, ())).items()
                if task in ends
            }

    def assignment_inputs(self) -> AssignmentInputs:
        """The part that is input of the assignment."""
        return AssignmentInputs(self.delayed_until_ms, self._lags)

    def update(
        self, request: StreamsGroupHeartbeatRequest, result: StreamsHeartbeatOutcome
    ) -> None:
        """Store the shutdown request and the endpoint epoch of a heartbeat."""
        member_id = result.resolved.member_id
        if request.shutdown_application:
            self.request_shutdown(member_id)
        if result.includes_tasks(request) and result.member.endpoint is not None:
            self.endpoint_epoch += 1

    def request_description(self, result: StreamsHeartbeatOutcome, now_ms: int) -> bool:
        """Whether this member must send the description; no other is asked for some time."""
        epoch = result.topology.epoch
        if (
            self.description(epoch) is not None
            or now_ms < self._description_retry_ms
            or result.member.topology_epoch != epoch
        ):
            return False
        self._description_retry_ms = now_ms + DESCRIPTION_RETRY_MS
        return True

    def store_description(self, epoch: int, description: TopologyDescription) -> None:
        """Keep the description of the topology of this epoch."""
        self._description = (epoch, description)

    def description(self, epoch: int) -> TopologyDescription | None:
        """The description of the topology of this epoch, if it is known."""
        known = self._description
        return known[1] if known is not None and known[0] == epoch else None

    def forget(self, member_id: str) -> None:
        """The member has left."""
        self.offsets.pop(member_id, None)
        self.end_offsets.pop(member_id, None)
        self._lags.pop(member_id, None)


def _by_task(offsets: Iterable[TaskOffset]) -> dict[TaskId, int]:
    return {(each.subtopology_id, each.partition): each.offset for each in offsets}
