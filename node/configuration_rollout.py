"""Brings a changed configuration of the node to all of its processes, and tells when they have it.

The supervisor has written the configuration to the run folder; the processes read it there. A
process that starts later reads it as well, so only those that are ready are waited for. A process
that ends is no longer waited for. Where the order matters, the controller has it before the others:
it records what a power loss may take before a worker acknowledges with less. Owned by the
supervisor.
"""

from collections.abc import Callable, Iterable
from typing import Final

from odradek.node.child import Child, ChildState

CONTROLLER: Final = "controller"
"""The name of the controller process."""


class ConfigurationRollout:
    """See the module's docstring."""

    def __init__(self, children: Callable[[], Iterable[Child]]) -> None:
        self._children = children
        self._revision = 0
        self._waiting: dict[int, tuple[set[str], Callable[[], None]]] = {}

    def begin(self, on_applied: Callable[[], None], *, controller_first: bool = False) -> None:
        """Tell all processes. `on_applied` is called once, when all that are ready have applied the
        configuration; at once if there are none."""
        if controller_first:
            self._tell(lambda: self._tell(on_applied), lambda child: child.name == CONTROLLER)
        else:
            self._tell(on_applied)

    def _tell(
        self,
        on_applied: Callable[[], None],
        is_meant: Callable[[Child], bool] = lambda _child: True,
    ) -> None:
        self._revision += 1
        missing = {
            child.name
            for child in self._children()
            if is_meant(child)
            and child.send_configuration(self._revision)
            and child.state is ChildState.READY
        }
        self._waiting[self._revision] = missing, on_applied
        self._finish()

    def on_applied(self, name: str, revision: int) -> None:
        """A process has applied the configuration with this number, and thereby all earlier."""
        for number, (missing, _) in self._waiting.items():
            if number <= revision:
                missing.discard(name)
        self._finish()

    def on_exit(self, name: str) -> None:
        """A process has ended."""
        for missing, _ in self._waiting.values():
            missing.discard(name)
        self._finish()

    def _finish(self) -> None:
        done = [number for number, (missing, _) in self._waiting.items() if not missing]
        for number in done:
            # What is called may begin the next one, and so come here.
            _, on_applied = self._waiting.pop(number, (None, None))
            if on_applied is not None:
                on_applied()
