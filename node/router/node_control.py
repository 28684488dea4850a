"""The configuration of the node, and what a router asks of the supervisor for the whole node: the
levels of its loggers, and its settings that are set through the cluster.

The supervisor answers when every process of the node has applied a change. A router that was
started by hand has no supervisor and changes itself.
"""

from collections.abc import Mapping
from functools import partial

import msgspec

from odradek.node.bus.reply import Reply
from odradek.node.config import NodeConfig
from odradek.node.log_levels import merged_levels, set_log_levels
from odradek.node.observability import (
    ChangeLogLevels,
    ChangeSettings,
    LogLevelsChanged,
    SettingsChanged,
    SupervisorLink,
)
from odradek.protocol.errors import ApiError, ErrorCode


class NodeControl:
    """See the module's docstring."""

    def __init__(self, link: SupervisorLink, config: NodeConfig) -> None:
        self.config = config
        """The node's configuration, which changes while the node runs."""
        self._link = link
        self._pending: dict[int, Reply[None]] = {}
        self._next_id = 0
        link.on_log_levels_changed = partial(self._on_answer, ErrorCode.KAFKA_STORAGE_ERROR)
        link.on_settings_changed = partial(self._on_answer, ErrorCode.INVALID_CONFIG)

    def change_log_levels(self, changes: Mapping[str, str | None]) -> Reply[None]:
        """Change levels on all processes of the node; the changes have passed `check_level`. Done
        when all have applied them; fails with ApiError if the node cannot."""
        reply: Reply[None] = Reply()
        if not self._link.is_connected:
            levels = merged_levels(self.config.log_levels, changes)
            self.config = msgspec.structs.replace(self.config, log_levels=levels)
            set_log_levels(self.config.log_level, levels)
            reply.resolve(None)
            return reply
        self._next_id += 1
        self._pending[self._next_id] = reply
        self._link.send(ChangeLogLevels(self._next_id, dict(changes)))
        return reply

    def change_settings(self, overrides: Mapping[str, str], *, is_trial: bool) -> Reply[None]:
        """Done when the node has these settings, which the metadata log has, on all processes but
        the routers that have to be replaced for them; with `is_trial` when it could have them.
        Fails with ApiError if it cannot."""
        reply: Reply[None] = Reply()
        if not self._link.is_connected:
            reply.resolve(None)
            return reply
        self._next_id += 1
        self._pending[self._next_id] = reply
        self._link.send(ChangeSettings(self._next_id, dict(overrides), is_trial))
        return reply

    def _on_answer(self, code: ErrorCode, message: LogLevelsChanged | SettingsChanged) -> None:
        """The supervisor has answered; a problem of the node is the error `code`."""
        reply = self._pending.pop(message.request_id, None)
        if reply is None:
            return
        if message.problem:
            reply.fail(ApiError(code, message.problem))
        else:
            reply.resolve(None)
