"""What a router asks of the supervisor for the whole node: the levels of its loggers.

The supervisor answers when every process of the node has applied a change. A router that was
started by hand has no supervisor and changes itself.
"""

from collections.abc import Mapping

from odradek.node.bus.reply import Reply
from odradek.node.log_levels import merged_levels, set_log_levels
from odradek.node.observability import (
    ChangeLogLevels,
    LogLevelsChanged,
    SupervisorLink,
)
from odradek.protocol.errors import ApiError, ErrorCode


class NodeControl:
    """See the module's docstring."""

    def __init__(
        self, link: SupervisorLink, *, log_level: str, log_levels: Mapping[str, str]
    ) -> None:
        self.log_level = log_level
        """The configured level of all loggers."""
        self.log_levels = log_levels
        """The levels that were set while the node runs, by logger."""
        self._link = link
        self._pending: dict[int, Reply[None]] = {}
        self._next_id = 0
        link.on_log_levels_changed = self._on_changed

    def follow(self, log_level: str, log_levels: Mapping[str, str]) -> None:
        """The node's configuration has changed, and this process has applied it."""
        self.log_level, self.log_levels = log_level, log_levels

    def change_log_levels(self, changes: Mapping[str, str | None]) -> Reply[None]:
        """Change levels on all processes of the node; the changes have passed `check_level`. Done
        when all have applied them; fails with ApiError if the node cannot."""
        reply: Reply[None] = Reply()
        if not self._link.is_connected:
            self.log_levels = merged_levels(self.log_levels, changes)
            set_log_levels(self.log_level, self.log_levels)
            reply.resolve(None)
            return reply
        self._next_id += 1
        self._pending[self._next_id] = reply
        self._link.send(ChangeLogLevels(self._next_id, dict(changes)))
        return reply

    def _on_changed(self, message: LogLevelsChanged) -> None:
        reply = self._pending.pop(message.request_id, None)
        if reply is None:
            return
        if message.problem:
            reply.fail(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message.problem))
        else:
            reply.resolve(None)
