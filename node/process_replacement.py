"""Replaces processes of a running node so that they start with another configuration.

What a process reads only when it starts takes effect in this way, whatever the key. Two phases:

    prepare   The successor of each process starts beside it, with the configuration that the node
              is to have, checks what it can, and waits. If one of them cannot, all end: nothing
              has happened.
    switch    The configuration becomes the node's. Then one process after the other stops as at a
              graceful restart, its successor takes over, and is ready before the next one stops. If
              one does not become ready, the former configuration is the node's again, and those
              that have switched go back.

Requests wait meanwhile, or their clients connect again: see graceful_stop.py for routers; of
workers the others wait. Owned by the supervisor, in whose loop it runs. Invariant: at any time
there is at most one process of a name that has taken over.
"""

import contextlib
from collections.abc import Callable, Container, Iterable
from enum import Enum, auto
from pathlib import Path

from odradek.node.child import Child, ChildPlan, ChildState
from odradek.node.config import NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.structured_log import get_logger

log = get_logger(__name__)


class _Phase(Enum):
    IDLE = auto()
    PREPARE = auto()
    SWITCH = auto()
    GO_BACK = auto()


class ProcessReplacement:
    """See the module's docstring. `children` is the supervisor's list, in which successors take the
    places of those that they replace."""

    def __init__(
        self,
        children: Callable[[], list[Child]],
        *,
        make_child: Callable[[ChildPlan], Child],
        plan: Callable[[NodeConfig], Iterable[ChildPlan]],
        candidate_path: Path,
    ) -> None:
        self._children = children
        self._make_child = make_child
        self._plan = plan
        self._candidate_path = candidate_path
        self._phase = _Phase.IDLE
        self._plans: list[ChildPlan] = []
        """Of the processes to replace, in this order."""
        self._successors: dict[str, Child] = {}
        """By name: those that are prepared, the last one perhaps not yet."""
        self._current: Child | None = None
        """The child that stops, or that has taken over and is not ready yet."""
        self._switched: list[ChildPlan] = []
        self._problem = ""
        self.replaced_count = 0
        """How many processes have been replaced since the start of the node."""
        self._adopt: Callable[[], None] = lambda: None
        self._revert: Callable[[], None] = lambda: None
        self._before_routers: Callable[[], None] = lambda: None
        self._is_trial = False
        self._on_end: Callable[[str], None] = lambda _problem: None

    @property
    def is_active(self) -> bool:
        """Whether processes are being replaced."""
        return self._phase is not _Phase.IDLE

    @property
    def successors(self) -> Iterable[Child]:
        """Those that have not taken over, which are not among `children`."""
        return self._successors.values()

    def begin(
        self,
        candidate: NodeConfig,
        kinds: Container[str],
        *,
        adopt: Callable[[], None] = lambda: None,
        revert: Callable[[], None] = lambda: None,
        before_routers: Callable[[], None] = lambda: None,
        on_end: Callable[[str], None],
        is_trial: bool = False,
    ) -> None:
        """Replace the processes of these kinds (controller, worker, router), in the order in which
        they are planned.

        `adopt` makes the configuration the node's when all are prepared; it may raise
        ConfigurationError or OSError. `revert` makes the former one the node's again.
        `before_routers` is called when all but the routers have the configuration. `on_end` is
        called once: with an empty text when all processes have it, otherwise with the reason why
        they have the former one. `is_trial`: end when all are prepared. Raises OSError if the disk
        is full.
        """
        assert not self.is_active, "one change at a time"
        candidate.save_json(self._candidate_path)
        self._plans = [
            plan for plan in self._plan(candidate) if plan.name.partition("-")[0] in kinds
        ]
        self._successors, self._switched, self._problem = {}, [], ""
        self._adopt, self._revert, self._on_end = adopt, revert, on_end
        self._before_routers, self._is_trial = before_routers, is_trial
        self._phase = _Phase.PREPARE

    def turn(self, now: float) -> None:
        """Take the next step that is possible. Called in every turn of the supervisor's loop."""
        if self._phase is _Phase.PREPARE:
            self._prepare(now)
        if self._phase in (_Phase.SWITCH, _Phase.GO_BACK):
            self._switch(now)

    def abandon(self) -> None:
        """The node stops: end the successors that have not taken over."""
        self._end_successors()
        self._end()

    def _prepare(self, now: float) -> None:
        """Start the successors one after the other: a node has little memory to spare."""
        for child in self._successors.values():
            child.reap(now)
            if child.state is ChildState.ENDED:
                unknown = f"a new {child.name} did not start with it; see its errors in the log"
                self._end_unchanged(child.refusal or unknown)
                return
            if child.state is ChildState.STARTING:
                if now >= child.deadline:
                    child.on_deadline(now)
                return
        if len(self._successors) < len(self._plans):
            plan = self._plans[len(self._successors)]
            child = self._successors[plan.name] = self._make_child(plan)
            child.start(now, candidate=self._candidate_path)
            return
        if self._is_trial:
            self._end_unchanged("")
            return
        try:
            self._adopt()
        except ConfigurationError as error:
            self._end_unchanged("; ".join(error.faults))
        except OSError as error:
            self._end_unchanged(f"it cannot be stored: {error.strerror}")
        else:
            log.info("processes of this node are replaced", child=", ".join(self._successors))
            self._phase = _Phase.SWITCH

    def _end_unchanged(self, problem: str) -> None:
        """End before anything has changed."""
        self._end_successors()
        self._end()
        self._on_end(problem)

    def _switch(self, now: float) -> None:
        while self._take_step(now):
            pass

    def _take_step(self, now: float) -> bool:
        """Whether there may be another step to take at once."""
        current = self._current
        if current is None:
            if not self._plans:
                self._end()
                self._on_end(self._problem)
                return False
            name = self._plans[0].name
            if name.startswith("router-") and self._phase is _Phase.SWITCH:
                self._before_routers()
            self._current = next(each for each in self._children() if each.name == name)
            self._current.stop(now, is_replaced=True)
            return self._current.state is ChildState.ENDED
        if current.state is ChildState.ENDED:
            self._take_over(current, now)
            return False
        if current.state is ChildState.READY:
            self._switched.append(self._plans.pop(0))
            self._current = None
            return True
        if current.state is ChildState.WAITING and self._phase is _Phase.SWITCH:
            self._go_back(current)
        return False

    def _take_over(self, former: Child, now: float) -> None:
        children, plan = self._children(), self._plans[0]
        successor = self._successors.pop(plan.name, None) or self._make_child(plan)
        successor.continue_from(former)
        children[children.index(former)] = self._current = successor
        self.replaced_count += 1
        successor.take_over(now)

    def _go_back(self, failed: Child) -> None:
        """A successor has ended before it was ready. It starts again by itself, with the former
        configuration."""
        self._problem = f"{failed.name} did not become ready with it; see its errors in the log"
        log.error("the former configuration is used again", reason=self._problem)
        self._end_successors()
        self._phase = _Phase.GO_BACK
        self._plans = [self._plans[0], *reversed(self._switched)]
        self._switched = []
        try:
            self._revert()
        except (ConfigurationError, OSError) as error:
            log.error("the former configuration cannot be restored", reason=str(error))

    def _end(self) -> None:
        self._phase = _Phase.IDLE
        # It may have secrets that are not the node's.
        with contextlib.suppress(OSError):
            self._candidate_path.unlink()

    def _end_successors(self) -> None:
        for child in self._successors.values():
            child.kill()
            child.wait()
        self._successors = {}
