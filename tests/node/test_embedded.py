"""A node as a child process: start, restart, kills and cleanup."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.embedded import BrokerFailure, EmbeddedBroker
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.ports import is_listening
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One for this module: its processes are killed often."""
    with EmbeddedBroker(tmp_path_factory.mktemp("embedded")) as broker:
        yield broker


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def port_of(broker: EmbeddedBroker) -> int:
    return int(broker.bootstrap_servers.rpartition(":")[2])


def test_a_topic_is_made_once_and_a_wrong_one_is_refused(broker: EmbeddedBroker) -> None:
    broker.create_topic("made", partitions=3, configs={"retention.ms": "60000"})
    with pytest.raises(ApiError) as again:
        broker.create_topic("made")
    assert again.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(ApiError) as wrong:
        broker.create_topic("wrong", configs={"retention.ms": "soon"})
    assert wrong.value.code is ErrorCode.INVALID_CONFIG


def test_a_killed_worker_is_replaced_and_the_node_goes_on(broker: EmbeddedBroker) -> None:
    before = broker.processes
    broker.kill_worker()
    broker.wait_until_ready()
    after = broker.processes
    assert after["worker-0"] != before["worker-0"]
    assert after["router-0"] == before["router-0"]
    broker.create_topic("after-the-worker")


def test_a_restarted_node_has_its_address_and_its_topics(broker: EmbeddedBroker) -> None:
    address = broker.bootstrap_servers
    broker.create_topic("kept")
    broker.restart()
    assert broker.bootstrap_servers == address
    with pytest.raises(ApiError):
        broker.create_topic("kept")


def test_a_killed_node_leaves_no_process_and_starts_again(broker: EmbeddedBroker) -> None:
    pids = broker.processes.values()
    broker.kill()
    wait_until(lambda: not any(map(is_alive, pids)), what="the children of a killed node end")
    assert not is_listening(port_of(broker))
    broker.start()
    assert is_listening(port_of(broker))


def test_a_running_node_is_not_started_twice(broker: EmbeddedBroker) -> None:
    with pytest.raises(BrokerFailure, match="already running"):
        broker.start()


def test_the_end_of_the_context_leaves_nothing(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        pids = list(broker.processes.values())
    assert not any(map(is_alive, pids))
    assert not broker.data.exists()


def test_packages_of_the_project_under_test_do_not_shadow_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "project" / "storage"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('not the one you want')")
    monkeypatch.chdir(package.parent)
    with EmbeddedBroker(tmp_path / "broker") as broker:
        broker.create_topic("made")


def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, settings={"log.retention.ms": "soon"})
    with pytest.raises(BrokerFailure, match="Invalid value soon for configuration"):
        broker.start()


def test_the_address_is_unknown_before_the_first_start(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailure, match="not started"):
        _ = EmbeddedBroker(tmp_path).bootstrap_servers


def test_a_node_ends_with_its_parent_process(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from odradek.node.embedded import EmbeddedBroker\n"
        f"broker = EmbeddedBroker(Path({str(tmp_path)!r}))\n"
        "broker.start()\n"
        "print(*broker.processes.values(), flush=True)\n"
        "time.sleep(60)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert starter.stdout is not None
    pids = [int(pid) for pid in starter.stdout.readline().split()]
    assert pids
    assert all(map(is_alive, pids))
    starter.send_signal(signal.SIGKILL)
    starter.communicate()
    wait_until(lambda: not any(map(is_alive, pids)), timeout_s=20, what="an orphaned node ends")
