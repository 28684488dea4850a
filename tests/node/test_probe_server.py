"""A node's probes tell alive and ready apart, and its metrics are those of all its processes."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.supervised_node import (
    CONTROLLER,
    ROUTER,
    SupervisedNode,
    get,
    supervised_node,
)
from tests.support.waiting import wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SupervisedNode]:
    yield from supervised_node(tmp_path)


def test_probes_tell_alive_and_ready_apart_and_metrics_come_from_all(node: SupervisedNode) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    node.start(CONTROLLER, ("worker-0", "never ready", 1), ROUTER, http_listen=f"127.0.0.1:{port}")
    wait_until(lambda: node.events("router-0 starts") and node.events("worker-0 starts"))
    assert get(f"{url}/livez") == (200, "alive\n")
    wait_until(lambda: "router-0 ready" in get(f"{url}/readyz")[1])
    status, text = get(f"{url}/readyz")
    assert status == 503
    assert "worker-0 starting" in text
    (node.data / "worker-0.behaviour").write_text("works")
    os.kill(int(node.events("worker-0 starts")[0].split()[-1]), signal.SIGKILL)
    node.wait_ready()
    assert get(f"{url}/readyz")[0] == 200
    assert node.state()["http"] == f"127.0.0.1:{port}"
    text = get(f"{url}/metrics")[1]
    for process in ("controller", "worker-0", "router-0"):
        assert f'odradek_stand_ins{{process="{process}",kind="a"}} 1\n' in text
        assert f'odradek_stand_ins{{process="{process}",kind="b\\""}} 2\n' in text
    assert 'odradek_process_restarts_total{process="worker-0"} 1\n' in text


def test_a_node_that_no_client_can_use_is_not_ready_and_says_why(node: SupervisedNode) -> None:
    port = free_port()
    router = ("router-0", "refuses clients", 0)
    node.start(CONTROLLER, router, http_listen=f"127.0.0.1:{port}")
    node.wait_ready()
    url = f"http://127.0.0.1:{port}/readyz"
    wait_until(lambda: get(url)[0] == 503)
    assert "listener A: its certificate has expired\n" in get(url)[1]


def test_a_node_is_ready_when_its_replicas_have_been_in_sync_once(node: SupervisedNode) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/readyz"
    node.file = node.folder / "node.properties"
    node.file.write_text("peer.advertised=127.0.0.1:9192\n")
    controller = ("controller", "catches up", 2)
    node.start(controller, is_clustered=True, http_listen=f"127.0.0.1:{port}").wait_ready()
    assert get(url) == (503, "controller ready\n2 replicas are not in sync yet: a-0, a-1\n")
    (node.data / "caught-up").touch()
    wait_until(lambda: node.events("controller has caught up"))
    wait_until(lambda: get(url)[0] == 200)
    os.kill(int(node.events("controller starts")[0].split()[-1]), signal.SIGKILL)
    wait_until(lambda: len(node.events("controller starts")) == 2)
    wait_until(lambda: get(url) == (200, "controller ready\n"), what="only the process is new")
    node.file.write_text("peer.advertised=localhost:9192\n")
    wait_until(lambda: "changed configuration file is in effect" in node.logged())
    assert len(node.events("controller starts")) == 3
    assert get(url) == (200, "controller ready\n")


def test_metrics_do_not_wait_for_a_process_that_does_not_answer(node: SupervisedNode) -> None:
    port = free_port()
    node.start(CONTROLLER, ("worker-0", "hangs", 1), ROUTER, http_listen=f"127.0.0.1:{port}")
    node.wait_ready()
    wait_until(lambda: node.events("worker-0 hangs"))
    text = get(f"http://127.0.0.1:{port}/metrics")[1]
    assert 'process="controller"' in text
    assert 'stand_ins{process="worker-0"' not in text
