"""A disk that is full, read-only or not writable is seen: in the log, metrics, readiness, commands
and answers."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.cluster import DescribeLogDirsRequest
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.records import Record, build_batch
from tests.support.disks import FailingDisk, SmallDisk, failing_disk, small_disk
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

MIB = 1 << 20
TOPIC = "orders"
PARTITIONS = 8
"""One in each store."""
PRODUCE_VERSION = 9
ANSWER_S = 10.0
"""Well before the client's request.timeout.ms."""


class WatchedNode:
    """A node, and the places where its state can be seen."""

    def __init__(self, folder: Path, http_port: int) -> None:
        self._http_port = http_port
        settings = {"http.listen": f"127.0.0.1:{http_port}"}
        self.node = EmbeddedBroker(folder, settings=settings, timeout_s=60.0)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._http_port}{path}", timeout=10
            ) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """The sum over all processes."""
        found = re.findall(rf"^{name}\{{.*\}} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return sum(map(float, found))

    def log_lines(self, pattern: str) -> list[str]:
        return [line for line in self.node.log().splitlines() if re.search(pattern, line)]

    def append(self, partition: int) -> tuple[ErrorCode, float]:
        """Append a record: the answer, and after how many seconds it came."""
        batch = memoryview(build_batch([Record(0, int(time.time() * 1000), b"k", b"")]))
        data = PartitionProduceData(index=partition, records=batch)
        topic = TopicProduceData(name=TOPIC, partition_data=[data])
        begin = time.monotonic()
        with WireClient(self.node.bootstrap_servers) as wire:
            request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
            answer = wire.ask(request, PRODUCE_VERSION, ProduceResponse)
        code = answer.responses[0].partition_responses[0].error_code
        return ErrorCode(code), time.monotonic() - begin

    def log_dir_error(self) -> ErrorCode:
        [result] = self.node.ask(DescribeLogDirsRequest(topics=None)).results
        return ErrorCode(result.error_code)

    def command(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of a command."""
        command = [sys.executable, "-m", "odradek", *arguments, "-b", self.node.bootstrap_servers]
        folder = Path(__file__).parents[2]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, cwd=folder
        )
        return ended.returncode, ended.stdout + ended.stderr


@contextmanager
def watched_node(folder: Path) -> Iterator[WatchedNode]:
    """A node that runs with the topic, in a data folder that exists."""
    watched = WatchedNode(folder, free_port())
    try:
        watched.node.start()
        watched.node.create_topic(TOPIC, partitions=PARTITIONS)
        assert watched.append(0)[0] is ErrorCode.NONE
        assert watched.get("/readyz")[0] == 200
        yield watched
    except BaseException as error:
        error.add_note(watched.node.log()[-6000:])
        raise
    finally:
        # Its state file cannot be deleted from a read-only disk.
        with suppress(OSError):
            watched.node.kill()


def check_is_seen(watched: WatchedNode, reason: str) -> None:
    """The node says everywhere that it cannot write, and why; and it does so once in its log."""

    def is_not_ready() -> bool:
        code, text = watched.get("/readyz")
        return code == 503 and reason in text

    wait_until(is_not_ready, what="/readyz names the reason")
    assert watched.metric("odradek_offline_log_directories") == 1
    assert watched.metric("odradek_storage_problems_total") >= 1
    for partition in range(PARTITIONS):
        error, seconds = watched.append(partition)
        assert (error, seconds < ANSWER_S) == (ErrorCode.KAFKA_STORAGE_ERROR, True), seconds
    assert watched.log_dir_error() is ErrorCode.KAFKA_STORAGE_ERROR
    code, text = watched.command("topic", "explain", TOPIC)
    assert code == 0
    assert "- Broker 0 cannot write its data: " in text
    assert reason in text
    code, text = watched.command("produce", TOPIC, "hello", "--timeout", "3")
    assert code == 1
    assert "1 of 1 records were not delivered" in text
    assert "Broker 0 cannot write its data: " in text
    code, text = watched.command("cluster", "status", "--output", "json")
    assert code == 1
    status = json.loads(text)
    assert reason in status["nodes"][0]["storage_problem"]
    assert reason in status["findings"][0]["finding"]
    with pytest.raises(ApiError) as caught:
        watched.node.create_topic("another")
    assert caught.value.code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)
    assert len(watched.log_lines("cannot be written")) == 1
    assert watched.log_lines("Traceback") == []


@pytest.mark.slow
def test_a_full_disk_is_seen_and_that_it_has_space_again(tmp_path: Path) -> None:
    def check(disk: SmallDisk) -> None:
        with watched_node(tmp_path / "node") as watched:
            disk.fill()
            check_is_seen(watched, "the disk is full")
            assert watched.metric("odradek_storage_errors_total") >= PARTITIONS
            disk.empty()
            wait_until(lambda: watched.get("/readyz")[0] == 200, what="ready again")
            assert watched.metric("odradek_offline_log_directories") == 0
            assert watched.log_dir_error() is ErrorCode.NONE
            for partition in range(PARTITIONS):
                assert watched.append(partition)[0] is ErrorCode.NONE
            assert len(watched.log_lines("can be written again")) == 1
            code, text = watched.command("topic", "explain", TOPIC)
            assert (code, "No problems found." in text) == (0, True)

    with small_disk(tmp_path / "node" / "data", 64 * MIB) as disk:
        check(disk)


@pytest.mark.slow
def test_a_disk_that_becomes_read_only_is_seen(tmp_path: Path) -> None:
    def check(disk: FailingDisk) -> None:
        with watched_node(tmp_path / "node") as watched:
            disk.fail()

            def is_refused() -> bool:
                # The worker that fails may end first: a retriable error.
                error, seconds = watched.append(1)
                assert seconds < ANSWER_S
                return error is ErrorCode.KAFKA_STORAGE_ERROR

            wait_until(is_refused, what="appends are refused")
            check_is_seen(watched, "Read-only file system")

    with failing_disk(tmp_path / "node" / "data", 128 * MIB) as disk:
        check(disk)


@pytest.mark.slow
def test_a_data_folder_that_is_deleted_is_seen(tmp_path: Path) -> None:
    with watched_node(tmp_path / "node") as watched:
        shutil.rmtree(tmp_path / "node" / "data")

        def is_refused() -> bool:
            """By the partitions of every store: each notices it by itself."""
            codes = {watched.append(partition)[0] for partition in range(PARTITIONS)}
            return codes == {ErrorCode.KAFKA_STORAGE_ERROR}

        wait_until(is_refused, what="appends are refused")
        check_is_seen(watched, "No such file or directory")


def test_a_data_folder_that_cannot_be_written_is_one_line_at_start(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with small_disk(folder, 4 * MIB):
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        ended = subprocess.run(
            [sys.executable, "-m", "odradek", "serve", "--listen", "127.0.0.1:0", "--data", folder],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=Path(__file__).parents[2],
            env=os.environ,
        )
    assert ended.returncode == 1
    assert ended.stdout == ""
    [line] = ended.stderr.splitlines()
    said = json.loads(line)
    assert said["level"] == "critical"
    assert said["reason"] == (
        f"data={folder}: cannot write to this folder: Read-only file system. Make it"
        " writable for this user or choose another data folder."
    )
