"""A child process: start, heartbeats, restart with growing delays, stop."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.child import (
    Child,
    ChildPlan,
    ChildState,
    ChildTimeouts,
    child_environment,
    python_command,
)
from tests.support.waiting import wait_until

READY = """\
from odradek.node.observability import (
    ProcessReady, ResizeWorkers, ShutdownAllowed, SupervisorLink
)
link = SupervisorLink.connect("x")
link.send(ProcessReady())"""
UNTIL_STOPPED = f"{READY}\nwhile not link.poll(): pass"


class ChildrenFixture:
    """Children on a selector that the test polls, with a manual clock."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.children: list[Child] = []
        self.became_ready: list[str] = []

    def child(self, script: str, timeouts: ChildTimeouts | None = None) -> Child:
        child = Child(
            ChildPlan("worker-0", [sys.executable, "-c", script], 0),
            timeouts or ChildTimeouts(),
            self.selector,
            lambda child: self.became_ready.append(child.name),
        )
        self.children.append(child)
        return child

    def turn(self) -> None:
        for key, _ in self.selector.select(0.005):
            key.data()

    def until(self, child: Child, state: ChildState) -> None:
        def has_come() -> bool:
            self.turn()
            child.reap(time.monotonic())
            return child.state is state

        wait_until(has_come, what=f"{child.name} is {state}")


@pytest.fixture
def children() -> Iterator[ChildrenFixture]:
    children = ChildrenFixture()
    yield children
    for child in children.children:
        child.kill()
        child.wait()
    children.selector.close()


def test_a_child_is_ready_when_it_says_so(children: ChildrenFixture) -> None:
    child = children.child(UNTIL_STOPPED)
    child.start(time.monotonic())
    assert child.state is ChildState.STARTING
    children.until(child, ChildState.READY)
    assert children.became_ready == ["worker-0"]
    child.stop(time.monotonic())
    children.until(child, ChildState.ENDED)


def test_a_child_reports_the_end_of_the_controlled_shutdown(children: ChildrenFixture) -> None:
    wait = "while not link.is_in_controlled_shutdown: link.poll()"
    script = f"{READY}\n{wait}\nlink.send(ShutdownAllowed())"
    child = children.child(f"{script}\nwhile not link.poll(): pass")
    assert not child.begin_controlled_shutdown(), "it does not run yet"
    child.start(time.monotonic())
    children.until(child, ChildState.READY)
    assert not child.can_shut_down
    assert child.begin_controlled_shutdown()

    def can_shut_down() -> bool:
        children.turn()
        return child.can_shut_down

    wait_until(can_shut_down)
    assert child.state is ChildState.READY


def test_a_child_can_request_a_number_of_workers(children: ChildrenFixture) -> None:
    child = children.child(f"{READY}\nlink.send(ResizeWorkers(3))\nwhile not link.poll(): pass")
    assert child.requested_workers is None
    child.start(time.monotonic())

    def has_said() -> bool:
        children.turn()
        return child.requested_workers == 3

    wait_until(has_said)


def test_the_restart_delay_doubles_up_to_a_bound_and_is_reset(children: ChildrenFixture) -> None:
    timeouts = ChildTimeouts(restart_first=1.0, restart_max=5.0, stable=100.0)
    child = children.child("", timeouts)
    waits = []
    for began in (0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 200.0):
        child.start(began)
        ended = began + 1 if began < 200 else began + 100

        def has_ended(at: float = ended) -> bool:
            children.turn()
            return child.reap(at)

        wait_until(has_ended)
        assert child.state is ChildState.WAITING
        waits.append(child.deadline - ended)
    assert waits == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0, 0.0]
    assert child.restart_count == 7


def test_a_malformed_message_does_not_end_the_link(children: ChildrenFixture) -> None:
    script = (
        "import os, socket; link = socket.socket(fileno=int(os.environ['_ODRADEK_LINK']))\n"
        "link.send(b'\\xc1nonsense'); os.environ['_ODRADEK_LINK'] = str(link.detach())\n"
        f"{UNTIL_STOPPED}"
    )
    child = children.child(script)
    child.start(time.monotonic())
    children.until(child, ChildState.READY)


def test_a_starting_child_is_terminated(children: ChildrenFixture) -> None:
    child = children.child("import signal; signal.pause()")
    child.start(time.monotonic())
    child.stop(time.monotonic())
    children.until(child, ChildState.ENDED)


def test_a_pause_of_the_supervisor_does_not_count_as_a_missed_heartbeat(
    children: ChildrenFixture,
) -> None:
    child = children.child(UNTIL_STOPPED, ChildTimeouts(heartbeat=5.0))
    child.start(0.0)
    children.until(child, ChildState.READY)
    child.extend_deadline(1_000.0)
    assert child.deadline == 1_005.0


def test_a_package_in_the_current_folder_does_not_shadow_ours(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "__init__.py").write_text("raise SystemExit('not ours')")
    subprocess.run(
        python_command("odradek.storage.layout"),
        cwd=tmp_path,
        env=child_environment(0),
        check=True,
        timeout=30,
    )


def test_malloc_is_configured_unless_the_user_has_done_so() -> None:
    assert 1 << 20 < int(child_environment(5, {})["MALLOC_MMAP_THRESHOLD_"]) < 2 << 20
    assert child_environment(5, {"MALLOC_ARENA_MAX": "9"})["MALLOC_ARENA_MAX"] == "9"
    assert child_environment(5, {})["_ODRADEK_LINK"] == "5"


def test_ctrl_c_does_not_reach_children(children: ChildrenFixture) -> None:
    child = children.child(UNTIL_STOPPED)
    child.start(time.monotonic())
    children.until(child, ChildState.READY)
    assert child.pid is not None
    assert os.getpgid(child.pid) != os.getpgid(0)
    os.kill(child.pid, signal.SIGKILL)
    children.until(child, ChildState.WAITING)
