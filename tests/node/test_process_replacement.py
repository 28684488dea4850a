"""Processes are replaced to start with a changed configuration; with stand-in processes."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.supervised_node import (
    CONTROLLER,
    ROUTER,
    WORKER,
    SupervisedNode,
    get,
    supervised_node,
)
from tests.support.waiting import wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SupervisedNode]:
    for each in supervised_node(tmp_path):
        each.file = tmp_path / "node.properties"
        write(each, arena=256)
        yield each


def write(node: SupervisedNode, *, arena: int, placement: str = "split") -> None:
    """Write the file: what a router, and what workers and router, read at their start only."""
    assert node.file is not None
    node.file.write_text(f"arena.bytes={arena}MiB\nprocessor.placement={placement}\n")


def started(node: SupervisedNode, name: str) -> list[int]:
    return [int(event.split()[-1]) for event in node.events(f"{name} starts")]


def test_one_after_the_other_leaves_when_its_successor_is_prepared(node: SupervisedNode) -> None:
    second = ("worker-1", "works", 1)
    node.start(CONTROLLER, WORKER, second, ROUTER).wait_ready()
    write(node, arena=300)
    wait_until(lambda: bool(node.events("router-0 runs with 300")), what=f"see {node.log}")
    assert [event.partition(" starts")[0] for event in node.events("router-0")] == [
        "router-0",
        "router-0 runs with 256",
        "router-0",
        "router-0 is prepared with 300",
        "router-0 has levels []",
        "router-0 stops",
        "router-0 ends",
        "router-0 runs with 300",
    ]
    wait_until(lambda: node.pid("router-0") == started(node, "router-0")[1])
    assert len(started(node, "worker-0")) == len(started(node, "controller")) == 1
    wait_until(lambda: "changed configuration file is in effect" in node.logged())
    # It is restarted like any other, with what is the node's.
    os.kill(node.pid("router-0"), signal.SIGKILL)
    wait_until(lambda: len(node.events("router-0 runs with 300")) == 2)
    wait_until(lambda: node.pid("router-0") == started(node, "router-0")[2])

    write(node, arena=300, placement="shared")
    wait_until(lambda: len(node.events("router-0 runs")) == 4, what=f"see {node.log}")
    assert node.events(" ends$| runs with 300")[-6:] == [
        f"{name}{what}"
        for name in ("worker-0", "worker-1", "router-0")
        for what in (" ends", " runs with 300")
    ]
    assert len(started(node, "controller")) == 1
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert node.survivors() == []


def test_a_value_with_which_a_process_does_not_start_is_refused(node: SupervisedNode) -> None:
    port = free_port()
    node.start(http_listen=f"127.0.0.1:{port}").wait_ready()
    before = node.state()["children"]
    url = f"http://127.0.0.1:{port}"

    def refuse(behaviour: str, arena: int, reason: str) -> None:
        (node.data / "router-0.behaviour").write_text(behaviour)
        write(node, arena=arena, placement="shared")
        told = f"the configuration file is refused: {reason}\n"
        wait_until(lambda: told in get(f"{url}/readyz")[1], what=f"see {node.log}")
        assert get(f"{url}/readyz")[0] == 200

    refuse("refuses", 300, "arena.bytes is too much")
    refuse("fails", 301, "a new router-0 did not start with it; see its errors in the log")
    assert "replace the present one has exited child=router-0 status='exit code 3'" in node.logged()
    assert node.state()["children"] == before
    assert not node.events("stops")
    assert not (node.folder / "run" / "candidate.json").exists()
    # The successors of the worker, which were prepared, have ended.
    assert len(node.survivors()) == 3
    metrics = get(f"{url}/metrics")[1]
    assert 'odradek_config_file_refused{process="supervisor"} 1\n' in metrics
    assert 'odradek_processes_replaced_total{process="supervisor"} 0\n' in metrics

    refuse("dies with 302", 302, "router-0 did not become ready with it; see its errors in the log")
    assert node.events(" runs with ")[3:] == [
        *("worker-0 runs with 302", "router-0 runs with 256", "worker-0 runs with 256"),
    ]

    (node.data / "router-0.behaviour").write_text("works")
    write(node, arena=303)
    wait_until(lambda: bool(node.events("router-0 runs with 303")), what="another value")
    assert "is refused" not in get(f"{url}/readyz")[1]
    # The worker twice, there and back, and the router; then the router.
    assert 'odradek_processes_replaced_total{process="supervisor"} 4\n' in get(f"{url}/metrics")[1]


def test_a_node_that_stops_meanwhile_leaves_nothing(node: SupervisedNode) -> None:
    lazy = ("worker-0", "does not stop", 1)
    node.start(CONTROLLER, lazy, ROUTER, timeouts={"stop": 2.0}).wait_ready()
    write(node, arena=300, placement="shared")
    wait_until(lambda: bool(node.events("worker-0 stops")), what=f"replacing, see {node.log}")
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert node.survivors() == []


def test_a_supervisor_that_is_killed_meanwhile_leaves_nothing(node: SupervisedNode) -> None:
    lazy = ("worker-0", "does not stop", 1)
    node.start(CONTROLLER, lazy, ROUTER).wait_ready()
    write(node, arena=300, placement="shared")
    wait_until(lambda: bool(node.events("worker-0 stops")), what=f"replacing, see {node.log}")
    node.signal(signal.SIGKILL)
    assert node.exit_code() == -signal.SIGKILL
    wait_until(lambda: not node.survivors(), what="all have ended")
    node.start(CONTROLLER, WORKER, ROUTER).wait_ready()
    assert node.events("router-0 runs with 300")
