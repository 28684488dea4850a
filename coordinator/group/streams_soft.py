"""What a coordinator knows of a streams group and no log holds.

It is gone when the shard moves, and nobody is worse off: members say anew how far their tasks have
come, are told anew whose tasks are where, and whoever wanted the application to shut down does so
itself. Called by `streams_groups`.
"""

from coordinator.group.streams_heartbeats import StreamsBeat
from protocol.messages.streams import StreamsGroupHeartbeatRequest, TaskOffset


class SoftState:
    """See the module's docstring."""

    __slots__ = ("delayed_until_ms", "end_offsets", "endpoint_epoch", "offsets", "shut_down_by")

    def __init__(self) -> None:
        self.delayed_until_ms = 0
        """Until when no target is made, for other members to come."""
        self.endpoint_epoch = 0
        """One more whenever a member that answers queries has other tasks."""
        self.shut_down_by: str | None = None
        """Which member has asked for the end of the application."""
        self.offsets: dict[str, list[TaskOffset]] = {}
        self.end_offsets: dict[str, list[TaskOffset]] = {}

    def start(self, delayed_until_ms: int) -> None:
        """The group's first member is coming."""
        self.delayed_until_ms = delayed_until_ms
        self.shut_down_by = None

    def ask_to_shut_down(self, member_id: str) -> None:
        """A member wants the application to end; who was first is remembered."""
        if self.shut_down_by is None:
            self.shut_down_by = member_id

    def hear(self, request: StreamsGroupHeartbeatRequest, done: StreamsBeat) -> None:
        """Take in what a heartbeat says in passing."""
        member_id = done.found.member_id
        if request.shutdown_application:
            self.ask_to_shut_down(member_id)
        if request.task_offsets is not None:
            self.offsets[member_id] = request.task_offsets
        if request.task_end_offsets is not None:
            self.end_offsets[member_id] = request.task_end_offsets
        if done.tells_tasks(request) and done.member.endpoint is not None:
            self.endpoint_epoch += 1

    def forget(self, member_id: str) -> None:
        """The member is gone."""
        self.offsets.pop(member_id, None)
        self.end_offsets.pop(member_id, None)
