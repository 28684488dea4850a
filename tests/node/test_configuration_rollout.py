"""A changed configuration is told to all processes and waited for; with stand-in children."""

from typing import cast

from odradek.node.child import Child, ChildState
from odradek.node.configuration_rollout import ConfigurationRollout


class RunningChild:
    """Stands in for a child process: keeps what it is told."""

    def __init__(self, name: str, state: ChildState = ChildState.READY) -> None:
        self.name = name
        self.state = state
        self.told: list[int] = []

    def send_configuration(self, revision: int) -> bool:
        self.told.append(revision)
        return self.state is not ChildState.WAITING


def rollout(*children: RunningChild) -> ConfigurationRollout:
    return ConfigurationRollout(lambda: cast("list[Child]", list(children)))


def test_all_processes_that_are_ready_are_waited_for() -> None:
    a, b = RunningChild("a"), RunningChild("b")
    starting = RunningChild("c", ChildState.STARTING)
    waiting = RunningChild("d", ChildState.WAITING)
    done: list[str] = []
    rolling = rollout(a, b, starting, waiting)
    rolling.begin(lambda: done.append("first"))
    assert a.told == b.told == starting.told == [1]
    rolling.on_applied("a", 1)
    rolling.on_applied("a", 1)
    assert done == []
    rolling.on_applied("b", 1)
    assert done == ["first"]
    rolling.on_applied("b", 1)
    assert done == ["first"]


def test_a_later_configuration_has_what_the_earlier_one_had() -> None:
    done: list[str] = []
    rolling = rollout(RunningChild("a"), RunningChild("b"))
    rolling.begin(lambda: done.append("first"))
    rolling.begin(lambda: done.append("second"))
    rolling.on_applied("a", 2)
    rolling.on_applied("b", 1)
    assert done == ["first"]
    rolling.on_applied("b", 2)
    assert done == ["first", "second"]


def test_a_process_that_ends_is_not_waited_for() -> None:
    done: list[str] = []
    rolling = rollout(RunningChild("a"))
    rolling.begin(lambda: done.append("first"))
    rolling.on_exit("a")
    assert done == ["first"]


def test_without_processes_it_is_applied_at_once() -> None:
    done: list[str] = []
    rollout().begin(lambda: done.append("first"))
    assert done == ["first"]


def test_the_controller_has_it_before_the_others_if_it_must() -> None:
    done: list[str] = []
    controller, worker = RunningChild("controller"), RunningChild("worker-0")
    rolling = rollout(controller, worker)
    rolling.begin(lambda: done.append("first"), controller_first=True)
    assert (controller.told, worker.told) == ([1], [])
    rolling.on_applied("controller", 1)
    assert (controller.told, worker.told) == ([1, 2], [2])
    rolling.on_applied("controller", 2)
    assert done == []
    rolling.on_applied("worker-0", 2)
    assert done == ["first"]


def test_several_that_wait_for_a_controller_that_ends() -> None:
    done: list[str] = []
    controller = RunningChild("controller")
    rolling = rollout(controller)
    for name in ("first", "second"):
        rolling.begin(lambda name=name: done.append(name), controller_first=True)  # type: ignore[misc]
    controller.state = ChildState.WAITING
    rolling.on_exit("controller")
    assert done == ["first", "second"]
