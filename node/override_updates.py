"""Has the settings of a node that are set through the cluster take effect while it runs.

The controller process says what is set. A router asks before the change whether the node could have
it, for which the successors of processes are prepared, and after the change when it has it: that
is answered when all processes have it but the routers, which are replaced last and have to pass the
answer on. What cannot take effect is told, and the node keeps what it has. Owned by the supervisor.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from odradek.node.child import Child
from odradek.node.config import NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.configuration_rollout import ConfigurationRollout
from odradek.node.configuration_updates import replaced_kinds
from odradek.node.node_overrides import with_overrides
from odradek.node.observability import ChangeSettings
from odradek.node.process_replacement import ProcessReplacement
from odradek.node.structured_log import get_logger

log = get_logger(__name__)

ANSWER_S_MAX = 25.0
"""Less than clients wait, 30 s by default."""


class OverrideUpdates:
    """See the module's docstring. `own` is the node's own configuration, `current` the one that it
    has, and `adopt` makes another one the node's; it may raise OSError."""

    def __init__(
        self,
        rollout: ConfigurationRollout,
        replacement: ProcessReplacement,
        *,
        own: Callable[[], NodeConfig],
        current: Callable[[], NodeConfig],
        adopt: Callable[[NodeConfig], None],
    ) -> None:
        self._rollout = rollout
        self._replacement = replacement
        self._own = own
        self._current = current
        self._adopt = adopt
        self.applied: Mapping[str, str] = {}
        """What has taken effect."""
        self._wanted: Mapping[str, str] = {}
        self._refused: Mapping[str, str] | None = None
        self._problem = ""
        self._trials: deque[tuple[Child, ChangeSettings]] = deque()
        self._awaiting: list[tuple[Child, ChangeSettings, float]] = []

    @property
    def problem_text(self) -> str:
        """A line for probes; empty if there is no problem."""
        if not self._problem:
            return ""
        return f"settings of the cluster are not in effect on this node: {self._problem}\n"

    def want(self, overrides: Mapping[str, str]) -> None:
        """This is set through the cluster."""
        self._wanted, self._refused = overrides, None
        if overrides == self.applied:
            self._problem = ""

    def ask(self, child: Child, message: ChangeSettings) -> None:
        """A router asks. It is answered in a later turn."""
        if message.is_trial:
            self._trials.append((child, message))
        else:
            self._awaiting.append((child, message, time.monotonic() + ANSWER_S_MAX))

    def tick(self, now: float) -> None:
        """Do what is due. Called while no processes are being replaced."""
        if self._problem != self._current().settings_problem:
            # For those that ask a router.
            with suppress(OSError):
                self._adopt(
                    msgspec.structs.replace(self._current(), settings_problem=self._problem)
                )
                self._rollout.begin(lambda: None)
        self._answer(self.applied)
        if self._refused is not None:
            self._answer(self._refused, self._problem)
        for entry in [entry for entry in self._awaiting if now >= entry[2]]:
            self._awaiting.remove(entry)
            entry[0].answer_settings(entry[1].request_id, "It is stored and not in effect yet.")
        if self._wanted not in (self.applied, self._refused):
            self._begin(self._wanted)
        elif self._trials:
            self._try(*self._trials.popleft())

    def _answer(self, overrides: Mapping[str, str], problem: str = "") -> None:
        """Answer those who wait for these settings."""
        for entry in [entry for entry in self._awaiting if entry[1].overrides == overrides]:
            self._awaiting.remove(entry)
            entry[0].answer_settings(entry[1].request_id, problem)

    def _try(self, child: Child, message: ChangeSettings) -> None:
        def on_end(problem: str) -> None:
            child.answer_settings(message.request_id, problem)

        try:
            before = self._current()
            config = with_overrides(before, self._own(), message.overrides)
            kinds = replaced_kinds(before, config)
            if kinds:
                self._replacement.begin(config, kinds, on_end=on_end, is_trial=True)
            else:
                on_end("")
        except (ConfigurationError, OSError) as error:
            on_end(_text(error))

    def _begin(self, overrides: Mapping[str, str]) -> None:
        before = self._current()

        def adopt() -> None:
            self._adopt(with_overrides(self._current(), self._own(), overrides))
            self.applied, self._problem = overrides, ""
            self._rollout.begin(lambda: None if kinds else self._answer(overrides))

        def revert() -> None:
            self.applied = former
            self._adopt(with_overrides(self._current(), self._own(), former))
            self._rollout.begin(lambda: None)

        def on_end(problem: str) -> None:
            if problem:
                self._refused, self._problem = overrides, problem
                log.error(
                    "what is set for this node through the cluster is not in effect", reason=problem
                )
            self._answer(overrides, problem)

        former, kinds = self.applied, set[str]()
        try:
            config = with_overrides(before, self._own(), overrides)
            kinds = replaced_kinds(before, config)
            if kinds:
                self._replacement.begin(
                    config,
                    kinds,
                    adopt=adopt,
                    revert=revert,
                    before_routers=lambda: self._answer(overrides),
                    on_end=on_end,
                )
            elif config != before:
                adopt()
            else:
                self.applied = overrides
        except (ConfigurationError, OSError) as error:
            on_end(_text(error))


def _text(error: ConfigurationError | OSError) -> str:
    if isinstance(error, ConfigurationError):
        return "; ".join(error.faults)
    return f"it cannot be stored: {error.strerror}"
