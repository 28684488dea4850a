"""A node's processes are started, restarted and stopped together; with stand-in processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from odradek.node.controller.clean_shutdown import (
    UNCLEAN,
    boot_id,
    previous_broker_epoch,
    record_run,
)
from odradek.storage.settings import Durability
from tests.support.supervised_node import (
    CONTROLLER,
    ROUTER,
    WORKER,
    SupervisedNode,
    is_running,
    supervised_node,
)
from tests.support.waiting import wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SupervisedNode]:
    yield from supervised_node(tmp_path)


# -- starting and stopping ------------------------------------------------------------------------


def test_the_node_is_ready_when_every_process_is(node: SupervisedNode) -> None:
    node.start().wait_ready()
    state = node.state()
    assert state["bootstrap"] == "127.0.0.1:40000"
    assert state["children"] == {
        name: node.pid(name) for name in ("controller", "worker-0", "router-0")
    }
    assert state["pid"] == node.process.pid if node.process else 0


def test_on_sigterm_routers_stop_first_then_workers_then_the_controller(
    node: SupervisedNode,
) -> None:
    node.start().wait_ready()
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert node.events("stops|ends") == [
        "router-0 stops",
        "router-0 ends",
        "worker-0 stops",
        "worker-0 ends",
        "controller stops",
        "controller ends",
    ]
    assert not (node.data / "node.json").exists()
    assert not (node.folder / "run").exists()


@pytest.mark.parametrize("behaviour", ["works", "does not stop"])
def test_a_clean_shutdown_is_recorded_when_all_workers_have_closed_their_stores(
    node: SupervisedNode, behaviour: str
) -> None:
    worker = ("worker-0", behaviour, 1)
    # A busy machine must not make the worker that works look like the other one.
    stop_s = 60.0 if behaviour == "works" else 0.5
    node.start(CONTROLLER, worker, ROUTER, timeouts={"stop": stop_s}).wait_ready()
    record_run(node.data, 17, "of a former start of the system", Durability.INTERVAL)
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    said = previous_broker_epoch(node.data, boot_id(), Durability.INTERVAL)
    assert said == (17 if behaviour == "works" else UNCLEAN)


def test_a_node_of_a_cluster_begins_with_the_controlled_shutdown(node: SupervisedNode) -> None:
    node.start(("controller", "releases", 2), WORKER, ROUTER, is_clustered=True).wait_ready()
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert node.events("controller leaves|stops") == [
        "controller leaves",
        "router-0 stops",
        "worker-0 stops",
        "controller stops",
    ]
    assert "controlled shutdown timed out" not in node.logged()


def test_the_controlled_shutdown_times_out(node: SupervisedNode) -> None:
    node.start(is_clustered=True, controlled_shutdown_timeout_ms="300").wait_ready()
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert re.search("controlled shutdown timed out .* duration_ms=300", node.logged())
    assert node.events("controller ends")


def test_a_second_signal_ends_the_controlled_shutdown(node: SupervisedNode) -> None:
    node.start(is_clustered=True, controlled_shutdown_timeout_ms="3600000").wait_ready()
    node.signal(signal.SIGTERM)
    wait_until(lambda: node.events("controller leaves"))
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert not node.events("stops")


def test_a_restarted_controller_begins_the_controlled_shutdown_again(node: SupervisedNode) -> None:
    node.start(is_clustered=True, controlled_shutdown_timeout_ms="3600000").wait_ready()
    pid = node.pid("controller")
    node.signal(signal.SIGTERM)
    wait_until(lambda: node.events("controller leaves"))
    (node.data / "controller.behaviour").write_text("releases")
    os.kill(pid, signal.SIGKILL)
    assert node.exit_code() == 0
    assert len(node.events("controller leaves")) == 2


def test_a_process_that_does_not_stop_is_killed_in_bounded_time(node: SupervisedNode) -> None:
    node.start(CONTROLLER, ("worker-0", "does not stop", 1), ROUTER, timeouts={"stop": 0.2})
    node.wait_ready()
    node.signal(signal.SIGINT)
    assert node.exit_code() == 0
    assert "it did not stop in time child=worker-0" in node.logged()
    assert node.events("controller ends")


def test_a_second_signal_ends_everything_at_once(node: SupervisedNode) -> None:
    node.start(CONTROLLER, WORKER, ("router-0", "does not stop", 0), timeouts={"stop": 60.0})
    node.wait_ready()
    node.signal(signal.SIGTERM)
    wait_until(lambda: node.events("router-0 stops"))
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert not node.survivors()


def test_a_node_can_be_stopped_before_it_is_ready(node: SupervisedNode) -> None:
    node.start(CONTROLLER, ("worker-0", "never ready", 1), ROUTER)
    wait_until(lambda: node.events("worker-0 starts"))
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0


def test_nothing_survives_a_supervisor_that_is_killed(node: SupervisedNode) -> None:
    node.start().wait_ready()
    node.events()
    node.signal(signal.SIGKILL)
    node.exit_code()
    wait_until(lambda: not node.survivors())


def test_after_a_kill_the_node_starts_again_in_the_same_folder(node: SupervisedNode) -> None:
    node.start().wait_ready()
    node.signal(signal.SIGKILL)
    node.exit_code()
    node.start().wait_ready()


# -- dying and hanging ----------------------------------------------------------------------------


def test_a_process_that_dies_is_restarted_at_once_and_the_others_go_on(
    node: SupervisedNode,
) -> None:
    node.start().wait_ready()
    before = node.state()["children"]
    os.kill(node.pid("worker-0"), signal.SIGKILL)
    wait_until(lambda: node.state()["children"] != before)
    after = node.state()["children"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert after["controller"] == before["controller"]
    assert after["router-0"] == before["router-0"]
    assert "is restarted child=worker-0 status=SIGKILL delay_ms=0" in node.logged()


def have_workers(node: SupervisedNode, count: int) -> None:
    """The controller requests so many workers; returns when they are ready."""
    wish = node.data / "wish"
    wish.write_text(str(count))
    wish.rename(node.data / "wanted-workers")
    wanted = {f"worker-{index}" for index in range(count)}

    def are_there() -> bool:
        children = node.state()["children"]
        assert isinstance(children, dict)
        return {name for name in children if name.startswith("worker-")} == wanted

    wait_until(are_there, what=f"{count} workers are ready, see {node.log}")


def test_new_workers_start_when_all_old_ones_have_ended(
    node: SupervisedNode,
) -> None:
    node.start().wait_ready()
    others = node.pid("controller"), node.pid("router-0")
    have_workers(node, 3)
    assert (node.pid("controller"), node.pid("router-0")) == others
    events = node.events("worker-. (starts|ends)")
    ended = events.index("worker-0 ends")
    assert all("starts" in event for event in events[ended + 1 :])
    assert len(events) == ended + 4
    have_workers(node, 1)
    assert len(node.events("worker-. ends")) == 4
    have_workers(node, 2)
    # Nobody waits for workers that there are no more.
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert node.survivors() == []


def test_a_worker_that_dies_after_a_change_is_restarted_like_any_other(
    node: SupervisedNode,
) -> None:
    node.start().wait_ready()
    have_workers(node, 2)
    before = node.pid("worker-1")
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: node.pid("worker-1") != before, what="it is back")


def test_a_stopping_node_starts_no_new_workers(node: SupervisedNode) -> None:
    lazy = ("worker-0", "does not stop", 1)
    node.start(CONTROLLER, lazy, ROUTER, timeouts={"stop": 1.0}).wait_ready()
    (node.data / "wanted-workers").write_text("2")
    wait_until(lambda: node.events("worker-0 stops"), what="the worker is told to end")
    node.signal(signal.SIGTERM)
    assert node.exit_code() == 0
    assert len(node.events("worker-. starts")) == 1
    assert node.survivors() == []


def test_a_process_that_hangs_is_killed_and_restarted(node: SupervisedNode) -> None:
    node.start(CONTROLLER, ("worker-0", "hangs", 1), ROUTER, timeouts={"heartbeat": 0.5})
    wait_until(lambda: node.events("worker-0 hangs"))
    (node.data / "worker-0.behaviour").write_text("works")
    wait_until(lambda: len(node.events("worker-0 starts")) == 2)
    assert (
        "it does not respond child=worker-0 reason='without a heartbeat' duration_ms=500"
        in node.logged()
    )


def test_a_process_that_keeps_dying_is_restarted_with_growing_delays(node: SupervisedNode) -> None:
    node.start(timeouts={"restart_first": 0.02}).wait_ready()
    (node.data / "worker-0.behaviour").write_text("fails")
    os.kill(node.pid("worker-0"), signal.SIGKILL)
    wait_until(lambda: len(node.events("worker-0 starts")) >= 6)
    waits = re.findall(r"is restarted child=worker-0 .*delay_ms=(\d+)", node.logged())
    assert waits[:5] == ["0", "20", "40", "80", "160"]
    (node.data / "worker-0.behaviour").unlink()
    wait_until(lambda: is_running(node.pid("worker-0")))


def test_a_process_that_ran_for_a_while_is_restarted_at_once(node: SupervisedNode) -> None:
    node.start(timeouts={"restart_first": 5.0, "stable": 0.0}).wait_ready()
    for _ in range(3):
        pid = node.pid("worker-0")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: node.pid("worker-0") != pid)  # noqa: B023


def test_a_node_that_cannot_start_gives_up_and_says_so(node: SupervisedNode) -> None:
    node.start(CONTROLLER, ("worker-0", "fails", 1), ROUTER)
    assert node.exit_code() == 1
    assert "the node gives up child=worker-0 count=3" in node.logged()
    assert node.events("controller ends")


# -- folders and addresses ------------------------------------------------------------------------


def test_a_second_node_in_the_same_folder_is_refused(node: SupervisedNode, tmp_path: Path) -> None:
    node.start().wait_ready()
    second = SupervisedNode(tmp_path)
    second.log = tmp_path / "second.log"
    second.start()
    assert second.exit_code() == 2
    assert node.process is not None
    assert f"a node is running in this folder (process {node.process.pid})" in second.logged()
    assert node.state()["pid"] == node.process.pid


def test_a_used_port_is_reported_before_anything_is_started(node: SupervisedNode) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        node.start(listeners=f"PLAINTEXT://127.0.0.1:{port}")
        assert node.exit_code() == 2
    assert re.search(rf"127\.0\.0\.1:{port}: .*in use; choose another", node.logged())
    assert not node.events()


def test_another_nodes_data_are_not_served(node: SupervisedNode) -> None:
    node.start().wait_ready()
    node.signal(signal.SIGTERM)
    node.exit_code()
    node.start(node_id="7")
    assert node.exit_code() == 2
    assert "belong to node 0" in node.logged()


# -- cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("process", "left_out"),
    [
        ("supervisor", "asyncio, zmq, lmdb, jwt, cryptography, opentelemetry"),
        ("controller.process", "jwt, cryptography, opentelemetry"),
        ("worker.process", "jwt, cryptography, opentelemetry"),
        ("router.process", "jwt, opentelemetry"),
    ],
)
def test_a_process_imports_nothing_heavy_that_it_may_not_need(process: str, left_out: str) -> None:
    # PyJWT with cryptography is 8 MB, opentelemetry-proto 5 MB, in each process.
    program = (
        f"import sys, odradek.node.{process};"
        f" print(sorted(set('{left_out}'.split(', ')) & sys.modules.keys()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_an_idle_supervisor_is_small_and_sleeps(node: SupervisedNode) -> None:
    node.start().wait_ready()
    assert node.process is not None
    process = psutil.Process(node.process.pid)
    assert process.memory_info().rss < 40 << 20
    assert process.num_threads() == 1
    before = process.cpu_times()
    switches = process.num_ctx_switches().voluntary

    def has_slept_a_while() -> bool:
        # It wakes for its tick and for a heartbeat of each child: about four times a second.
        return bool(process.num_ctx_switches().voluntary - switches >= 4)

    wait_until(has_slept_a_while)
    after = process.cpu_times()
    assert (after.user + after.system) - (before.user + before.system) <= 0.02


# -- the configuration ----------------------------------------------------------------------------


def test_log_levels_are_answered_when_every_process_has_them(node: SupervisedNode) -> None:
    node.start().wait_ready()
    (node.data / "wanted-levels").write_text(json.dumps({"odradek.node.wire": "DEBUG"}))
    wait_until(lambda: bool(node.events("is answered 7$")), what="the answer")
    told = node.events("has levels|is answered")
    assert set(told[:3]) == {
        f"{name} has levels [('odradek.node.wire', 'DEBUG')]"
        for name in ("controller", "worker-0", "router-0")
    }
    assert told[3:] == ["router-0 is answered 7"]
    assert "changed_logger=odradek.node.wire new_level=DEBUG" in node.logged()


def test_a_process_that_ends_is_not_waited_for_and_has_the_levels_when_it_returns(
    node: SupervisedNode,
) -> None:
    node.start(CONTROLLER, ("worker-0", "hangs", 1), ROUTER).wait_ready()
    (node.data / "worker-0.behaviour").write_text("works")
    wait_until(lambda: bool(node.events("worker-0 hangs")), what="a worker that hangs")
    (node.data / "wanted-levels").write_text(json.dumps({"root": "ERROR"}))
    wait_until(lambda: len(node.events("has levels")) == 2, what="the others have the levels")
    assert not node.events("is answered")
    os.kill(node.pid("worker-0"), signal.SIGKILL)
    wait_until(lambda: bool(node.events("is answered 7$")), what="the answer")
    wait_until(lambda: len(node.events("worker-0 starts")) == 2, what="the worker is back")
    config = json.loads((node.folder / "run" / "config.json").read_text())
    assert config["log_levels"] == {"root": "ERROR"}
