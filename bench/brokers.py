"""Starts the two measured brokers, each with an empty data directory and its default settings."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 90.0
CLUSTER_ID = "T2RyYWRla0JlbmNobWFyaw"
# What Kafka's own start script passes to the JVM.
KAFKA_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
# The values of Kafka's own config/server.properties, for one node on loopback.
KAFKA_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
LOG4J = """\
Configuration:
  Appenders:
    Console: {name: OUT, PatternLayout: {pattern: "[%d] %p %m (%c)%n"}}
  Loggers:
    Root: {level: WARN, AppenderRef: {ref: OUT}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A running broker: its name in the tables, its address and its version."""

    name: str
    version: str
    port: int
    pid: int
    start_seconds: float
    tls_port: int = 0
    """Of its listener with TLS; 0 without one."""

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def kafka(jars: Path, directory: Path, key_store: Path | None = None) -> Iterator[Broker]:
    """Apache Kafka from a folder of jars, with its data in `directory`; with a key store in PEM it
    has a listener with TLS, too."""
    port, controller_port, tls_port = free_port(), free_port(), 0
    data = directory / "data"
    directory.mkdir(parents=True)
    properties = directory / "server.properties"
    properties.write_text(
        KAFKA_PROPERTIES.format(port=port, controller_port=controller_port, data=data)
    )
    if key_store is not None:
        tls_port = free_port()
        text = properties.read_text().replace(
            f"PLAINTEXT://127.0.0.1:{port}",
            f"PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{tls_port}",
        )
        text = text.replace("PLAINTEXT:PLAINTEXT", "PLAINTEXT:PLAINTEXT,SSL:SSL")
        properties.write_text(f"{text}ssl.keystore.type=PEM\nssl.keystore.location={key_store}\n")
    log4j = directory / "log4j2.yaml"
    log4j.write_text(LOG4J)
    java = ["java", f"-Dlog4j2.configurationFile={log4j}", "-cp", f"{jars}/*"]
    format_storage = ["kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER_ID]
    subprocess.run([*java, *format_storage, "-c", str(properties)], check=True, capture_output=True)
    command = [*java[:1], *KAFKA_JVM, *java[1:], "kafka.Kafka", str(properties)]
    with _running(command, directory, port) as (pid, seconds):
        yield Broker(
            name="Kafka",
            version=kafka_version(jars),
            port=port,
            pid=pid,
            start_seconds=seconds,
            tls_port=tls_port,
        )


def kafka_version(jars: Path) -> str:
    """The Kafka release of the jars."""
    return next(jars.glob("kafka_2.13-*.jar")).stem.removeprefix("kafka_2.13-")


def revision(repository: Path) -> str:
    """The measured commit; `-dirty` if anything but documents differs from it."""

    def git(*command: str) -> str:
        ran = subprocess.run(
            ["git", "-C", str(repository), *command], capture_output=True, text=True, check=False
        )
        return ran.stdout.strip()

    commit = git("describe", "--always")
    documents = ":(exclude)docs", ":(exclude)*.md"
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *documents)
    return f"{commit}-dirty" if commit and changed else commit or "unknown"


@contextmanager
def odradek(repository: Path, directory: Path, key_store: Path | None = None) -> Iterator[Broker]:
    """Odradek, started with `odradek serve`; with a key store in PEM also with a listener that has
    TLS."""
    port, tls_port = free_port(), 0
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "odradek", "serve"]
    if key_store is None:
        command += ["--listen", f"127.0.0.1:{port}"]
    else:
        tls_port = free_port()
        addresses = f"PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{tls_port}"
        command += ["--set", f"listeners={addresses}", "--set", "ssl.keystore.type=PEM"]
        command += ["--set", f"ssl.keystore.location={key_store}"]
    command += ["--data", str(directory / "data"), "--profile", "standard"]
    environment = {"PYTHONPATH": str(repository)}
    with _running(command, directory, port, environment) as (pid, seconds):
        yield Broker(
            name="Odradek",
            version=revision(repository),
            port=port,
            pid=pid,
            start_seconds=seconds,
            tls_port=tls_port,
        )


@contextmanager
def _running(
    command: Sequence[str],
    directory: Path,
    port: int,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[int, float]]:
    """Run `command` until the block ends; yields its pid and the seconds to its first answer."""
    log = directory / "output.log"
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        while not answers_metadata(port):
            if process.poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
                raise RuntimeError(f"{command[0]} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.005)
        yield process.pid, time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def answers_metadata(port: int) -> bool:
    """Whether the response to Metadata (version 1, no topics) lists a broker."""
    request = bytes.fromhex("0003 0001 00000000 0004 6c6f6164 00000000")
    try:
        with socket.create_connection(("127.0.0.1", port), 2.0) as connection:
            connection.sendall(len(request).to_bytes(4, "big") + request)
            head = connection.recv(12, socket.MSG_WAITALL)
            return len(head) == 12 and int.from_bytes(head[8:12], "big") > 0
    except OSError:
        return False
