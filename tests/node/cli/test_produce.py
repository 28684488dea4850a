"""`odradek produce` against a cluster, read back by `odradek consume`."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from odradek.node.embedded import EmbeddedBroker
from tests.node.cli.conftest import Run
from tests.support.waiting import is_readable, wait_until

pytestmark = pytest.mark.e2e


def read(kafka: Run, *topic: str) -> list[dict[str, object]]:
    return kafka("consume", *topic, "-o", "json").json_lines()


def test_values_from_arguments_with_key_and_headers(kafka: Run, topic: str) -> None:
    made = kafka("produce", topic, "a", "b", "-k", "same", "-H", "n=1", "-H", "n=2", "-o", "json")
    summary = made.json()
    assert isinstance(summary, dict)
    assert summary["records"] == 2
    records = read(kafka, topic)
    assert [record["value"] for record in records] == ["a", "b"]
    assert {record["key"] for record in records} == {"same"}
    assert records[0]["headers"] == [{"key": "n", "value": "1"}, {"key": "n", "value": "2"}]


def test_lines_from_stdin_with_keys_and_tombstones(kafka: Run, topic: str) -> None:
    kafka("produce", topic, "-K", ":", "-p", "0", "--empty-is-null", stdin="x:1:2\ny:\nplain\r\n")
    assert [(record["key"], record["value"]) for record in read(kafka, topic)] == [
        ("x", "1:2"),
        ("y", None),
        (None, "plain"),
    ]


def test_a_key_goes_where_javas_clients_put_it(kafka: Run, topic: str) -> None:
    """murmur2 of the key, modulo the number of partitions, as computed by Kafka's Utils.java."""
    kafka("produce", topic, "-K", ":", stdin="21:\nfoobar:\na-little-bit-long-string:\n")
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    found = {record["key"]: record["partition"] for record in read(kafka, topic)}
    assert found == {key: (value & 0x7FFFFFFF) % 3 for key, value in hashes.items()}


def test_a_file_as_one_record(kafka: Run, topic: str, tmp_path: Path) -> None:
    blob = bytes(range(256)) * 40
    file = tmp_path / "blob"
    file.write_bytes(blob)
    assert kafka("produce", topic, "--file", str(file), "--format", "raw").exit_code == 0
    (record,) = read(kafka, topic)
    import base64

    assert base64.b64decode(str(record["value_base64"])) == blob


@pytest.mark.usefixtures("keeps_old_records")
def test_json_lines_keep_partition_and_time_with_keep_partitions(kafka: Run, topic: str) -> None:
    lines = [
        {"value": {"id": 1}, "key": "k", "partition": 2, "timestamp": 1234},
        {"value": None, "partition": 1},
    ]
    text = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    kafka("produce", topic, "--format", "json", "--keep-partitions", stdin=text)
    (first,) = read(kafka, f"{topic}:2")
    assert (first["value"], first["timestamp"]) == ('{"id":1}', 1234)
    (second,) = read(kafka, f"{topic}:1")
    assert second["value"] is None


def test_a_topic_is_copied_through_json(kafka: Run, topic: str) -> None:
    kafka("produce", topic, "-K", ":", stdin="".join(f"k{i}:v{i}\n" for i in range(50)))
    copy = f"{topic}-copy"
    kafka("topic", "create", copy, "-p", "1")
    stream = kafka("consume", topic, "-o", "json").stdout
    assert kafka("produce", copy, "--format", "json", stdin=stream).exit_code == 0
    pairs = {(record["key"], record["value"]) for record in read(kafka, copy)}
    assert pairs == {(f"k{i}", f"v{i}") for i in range(50)}
    kafka("topic", "delete", copy, "-y")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["1", "all"])
def test_every_compression_arrives(kafka: Run, topic: str, codec: str, acks: str) -> None:
    text = "".join(f"line {i} " + "x" * 100 + "\n" for i in range(200))
    kafka("produce", topic, "-z", codec, "--acks", acks, "-p", "0", stdin=text)
    assert kafka("consume", topic).stdout == text


def test_an_invalid_line_is_named_by_its_number(kafka: Run, topic: str) -> None:
    ran = kafka("produce", topic, "--format", "json", stdin='{"value": "x"}\n{"vlue": 1}\n')
    assert ran.exit_code == 1
    assert "line 2 of the input: unknown key 'vlue'" in ran.stderr


def test_a_partition_that_does_not_exist_is_an_error_at_once(kafka: Run, topic: str) -> None:
    ran = kafka("produce", topic, "x", "-p", "77")
    assert ran.exit_code == 1
    assert ran.stderr == (f"Error: {topic}-77: no such partition; {topic} has partitions 0 to 2\n")


def test_records_before_a_wrong_line_are_delivered_and_counted(kafka: Run, topic: str) -> None:
    lines = '{"value": "a"}\n{"value": "b"}\nnonsense\n{"value": "c"}\n'
    ran = kafka("produce", topic, "--format", "json", stdin=lines)
    assert ran.exit_code == 1
    assert "line 3 of the input: " in ran.stderr
    assert f"(2 records before it were delivered to {topic})" in ran.stderr
    assert sorted(str(record["value"]) for record in read(kafka, topic)) == ["a", "b"]


def test_values_and_a_file_together_are_wrong_usage(kafka: Run, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.touch()
    assert kafka("produce", "t", "v", "--file", str(file)).exit_code == 2
    assert kafka("produce", "t", "v", "-k", "a", "-K", ":").exit_code == 2


class Terminal:
    """The terminal of one process."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.shown = ""
        self.has_ended = False
        self._descriptor = descriptor

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def shows(self, text: str) -> bool:
        while is_readable(self._descriptor, 0.05):
            try:
                self.shown += os.read(self._descriptor, 4096).decode()
            except OSError:  # the process has ended
                break
        return text in self.shown

    def exit_code(self) -> int:
        """Wait for the end of the process."""
        _, status = os.waitpid(self.pid, 0)
        self.has_ended = True
        return os.waitstatus_to_exitcode(status)


@contextmanager
def at_a_terminal(*arguments: str, bootstrap: str) -> Iterator[Terminal]:
    """`odradek produce` with somebody who types."""
    pid, descriptor = pty.fork()
    if pid == 0:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}
        environment["ODRADEK_BOOTSTRAP"] = bootstrap
        os.execve(
            sys.executable,
            [sys.executable, "-m", "odradek", "produce", *arguments],
            environment,
        )
    terminal = Terminal(pid, descriptor)
    try:
        yield terminal
    finally:
        os.close(descriptor)
        if not terminal.has_ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("end", "echo"), [("\x03", "^C\r\n"), ("\x04", "")], ids=["Ctrl-C", "Ctrl-D"]
)
def test_what_is_typed_is_delivered_line_by_line_and_ctrl_c_is_no_error(
    kafka: Run, topic: str, bootstrap: str, end: str, echo: str
) -> None:
    with at_a_terminal(topic, "-p", "0", bootstrap=bootstrap) as terminal:
        wait_until(lambda: terminal.shows("end with Ctrl-D.\r\n"))
        terminal.type("one\n")
        wait_until(lambda: len(read(kafka, topic)) == 1)
        terminal.type("two\n")
        wait_until(lambda: len(read(kafka, topic)) == 2)
        terminal.type(end)
        wait_until(lambda: terminal.shows(f"2 records to {topic} (2 in 0)\r\n"))
        assert terminal.exit_code() == 0
    # Nothing else is drawn over what is typed: no bar.
    assert terminal.shown == (
        f"Type records, one a line; end with Ctrl-D.\r\none\r\ntwo\r\n{echo}"
        f"2 records to {topic} (2 in 0)\r\n"
    )


def test_a_refused_line_ends_the_typing(kafka: Run, topic: str, bootstrap: str) -> None:
    kafka("config", "set", "topic", topic, "max.message.bytes=200")
    with at_a_terminal(topic, bootstrap=bootstrap) as terminal:
        wait_until(lambda: terminal.shows("Ctrl-D."))
        terminal.type("short\n")
        terminal.type("l" * 300 + "\n")
        wait_until(lambda: terminal.shows("max.message.bytes=200"))
        assert terminal.exit_code() == 1


def started(*arguments: str, bootstrap: str, stdin: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-m", "odradek", "produce", *arguments],
        stdin=stdin,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "ODRADEK_BOOTSTRAP": bootstrap},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_pipe_delivers_what_was_read(
    kafka: Run, topic: str, bootstrap: str, number: signal.Signals
) -> None:
    with started(topic, bootstrap=bootstrap, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write("a\nb\nc\n")
        process.stdin.flush()
        wait_until(lambda: len(read(kafka, topic)) == 3)
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read().startswith(f"3 records to {topic} (")
        process.stdin.close()


def test_an_interrupted_file_ends_with_130(
    kafka: Run, topic: str, bootstrap: str, tmp_path: Path
) -> None:
    """Some of its records are missing in the topic: a script has to notice that."""
    file = tmp_path / "lines"
    with file.open("w") as lines:
        lines.writelines(f"{number}\n" for number in range(5_000_000))
    with started(topic, "-f", str(file), bootstrap=bootstrap, stdin=subprocess.DEVNULL) as process:
        wait_until(lambda: kafka("consume", topic, "-n", "1").stdout != "")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        text = process.stderr.read()
    rows = kafka("topic", "offsets", topic, "-o", "json").json()
    assert isinstance(rows, list)
    count = sum(row["records"] for row in rows)
    assert text.startswith(f"{count} records to {topic} (")
    assert count < 5_000_000


def test_small_records_are_not_refused_because_many_make_a_large_batch(
    kafka: Run, topic: str
) -> None:
    kafka("config", "set", "topic", topic, "max.message.bytes=1000")
    lines = "".join(f"line {number}\n" for number in range(5_000))
    made = kafka("produce", topic, "-o", "json", stdin=lines)
    summary = made.json()
    assert isinstance(summary, dict)
    assert summary["records"] == 5_000


def test_the_refusal_of_a_large_record_names_the_limit_and_how_to_raise_it(
    kafka: Run, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(3_000_000))
    large = ("produce", topic, "--file", str(file), "--format", "raw")
    refused = kafka(*large)
    assert refused.exit_code == 1
    assert "a record of 3000000 bytes is larger than max.message.bytes=1048588" in refused.stderr
    assert "(from the brokers' message.max.bytes)" in refused.stderr
    assert "max.request.size in Java" in refused.stderr
    advice = f"odradek config set topic {topic} max.message.bytes=3000100"
    assert advice in refused.stderr
    assert kafka(*advice.split()[1:]).exit_code == 0
    assert kafka(*large).exit_code == 0
    own = kafka(*large, "-X", "message.max.bytes=2000")
    assert own.exit_code == 1
    assert "larger than the producer's message.max.bytes=2000 (-X)" in own.stderr
    kafka("config", "set", "topic", topic, "max.message.bytes=100000")
    assert "max.message.bytes=100000 of topic" in kafka(*large).stderr


def test_a_record_larger_than_any_request_is_refused_before_it_is_sent(
    kafka: Run, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "huge"
    with file.open("wb") as stream:
        stream.truncate(104_857_600)
    ran = kafka("produce", topic, "--file", str(file), "--format", "raw")
    assert ran.exit_code == 1
    assert "socket.request.max.bytes=104857600" in ran.stderr


def test_a_topic_that_will_not_be_created_is_an_error_at_once(tmp_path: Path, odradek: Run) -> None:
    settings = {"auto.create.topics.enable": "false"}
    with EmbeddedBroker(tmp_path, settings=settings) as broker:
        at = broker.bootstrap_servers
        odradek("topic", "create", "orders", bootstrap=at)
        began = time.monotonic()
        ran = odradek("produce", "ordres", "x", bootstrap=at)
        assert ran.exit_code == 1
        assert ran.stderr == "Error: ordres: no such topic; did you mean orders?\n"
        assert time.monotonic() - began < 10
        _ends_within_the_timeout(broker, odradek)


def _ends_within_the_timeout(broker: EmbeddedBroker, odradek: Run) -> None:
    """A broker that is frozen while records are sent."""
    workers = [pid for name, pid in broker.processes.items() if name.startswith("worker")]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        for lines in ("x\n", "x\n" * 200_000):
            began = time.monotonic()
            ran = odradek(
                "produce",
                "orders",
                "--timeout",
                "2",
                stdin=lines,
                bootstrap=broker.bootstrap_servers,
            )
            assert ran.exit_code == 1
            assert "were not delivered to orders: " in ran.stderr
            assert time.monotonic() - began < 8
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
