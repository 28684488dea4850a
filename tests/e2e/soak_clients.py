"""Clients of many libraries that read one topic while a test injects faults, each in its own group.

All of them start again after an error of their library, as an application would, and count that. A
`SoakGroup` must have read every record of the topic in the end; a `CopyGroup` copies it in
transactions to a topic that has its name, where read_committed consumers must find each record
once.
"""

import asyncio
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, TopicPartition
from kafka import KafkaConsumer
from kafka.errors import KafkaError as PythonKafkaError

from tests.e2e.checker import Log, ObservedHistory, Position, Value, anomalies
from tests.e2e.load import Reader, decode
from tests.support.java import LOG4J, kafka_jars
from tests.support.streams_application import compile_application

POLL_S: Final = 0.2
JOIN_S: Final = 60.0
SESSION_TIMEOUT_MS: Final = 10_000
"""A member that starts again may not have left: its group waits for its session to expire."""
SHOWN: Final = 5
JAVA: Final = Path(__file__).parents[1] / "conformance" / "java" / "SoakClients.java"
JAVA_READERS: Final = ("java-static", "java-consumer", "java-share")
JAVA_COPIES: Final = ("java-copy", "java-copy-consumer", "java-streams")
GO_COPIES: Final = ("go-copy", "go-copy-consumer")


class SoakGroup(Protocol):
    """The members of one group."""

    name: str
    restart_count: int
    """How often a member has started again after an error."""

    def read_count(self) -> int:
        """The records that it has read, some of them several times."""
        ...

    def unread(self, log: Log) -> int:
        """The records of the topic that it has not read, or not copied."""
        ...

    def found(self, log: Log) -> list[str]:
        """Violations as sentences, once the clients have stopped."""
        ...


class Tally:
    """Counts of pairs of numbers, up to 255 each: a byte for each pair, as a run of hours has
    millions of them."""

    def __init__(self) -> None:
        self.total = 0
        self._counts: dict[int, bytearray] = {}

    def add(self, pair: tuple[int, int]) -> None:
        """Count a pair of a small number and an index."""
        first, index = pair
        counts = self._counts.setdefault(first, bytearray())
        if index >= len(counts):
            counts.extend(bytes(index + 1024 - len(counts)))
        counts[index] = min(counts[index] + 1, 255)
        self.total += 1

    def __getitem__(self, pair: tuple[int, int]) -> int:
        counts = self._counts.get(pair[0], b"")
        return counts[pair[1]] if pair[1] < len(counts) else 0

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Those that were counted, in order."""
        for first, counts in sorted(self._counts.items()):
            yield from ((first, index) for index, count in enumerate(counts) if count)


class ReadingGroup:
    """A group that reads every record at least once, by position."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.restart_count = 0
        self.faults: list[str] = []
        self._seen = Tally()

    def add(self, position: Position) -> None:
        """A member has read this record."""
        self._seen.add(position)

    def read_count(self) -> int:
        """See SoakGroup."""
        return self._seen.total

    def unread(self, log: Log) -> int:
        """See SoakGroup."""
        return sum(not self._seen[position] for position in _positions(log))

    def found(self, log: Log) -> list[str]:
        """See SoakGroup."""
        known = set(_positions(log))
        unread = (position for position in known if not self._seen[position])
        invented = (pair for pair in self._seen.pairs() if pair not in known)
        return [
            *(f"{self.name}: {fault}" for fault in self.faults[:SHOWN]),
            *_sentences(f"{self.name} has not read", unread),
            *_sentences(f"{self.name} has read what is nowhere:", invented),
        ]


class CheckedGroup:
    """A group of confluent-kafka: its readings are compared with the log as those of the workload
    are, gaps, steps back and commits included."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        members: Sequence[Mapping[str, str]],
        sent: ObservedHistory,
    ) -> None:
        self.name = name
        self.restart_count = 0
        # What was sent is checked once, by the workload.
        self._history = ObservedHistory(sent=sent.sent, acknowledged=sent.acknowledged)
        self._readers = [
            Reader(
                bootstrap,
                topic,
                name,
                f"{name}-{number}",
                self._history,
                is_patient=True,
                # A fault can last longer than a session of SESSION_TIMEOUT_MS.
                on_expired=self._count_restart,
                properties=properties,
            )
            for number, properties in enumerate(members)
        ]

    def _count_restart(self) -> None:
        self.restart_count += 1

    def start(self) -> None:
        for reader in self._readers:
            reader.start()

    def stop(self) -> None:
        for reader in self._readers:
            reader.stop()

    def read_count(self) -> int:
        """See SoakGroup."""
        return sum(len(reading.records) for reading in list(self._history.readings))

    def unread(self, log: Log) -> int:
        """See SoakGroup."""
        seen = {
            Position(reading.partition, offset)
            for reading in list(self._history.readings)
            for offset, _ in list(reading.records)
        }
        return sum(position not in seen for position in _positions(log))

    def found(self, log: Log) -> list[str]:
        """See SoakGroup."""
        self._history.log = log
        return [f"{self.name}: {sentence}" for sentence in anomalies(self._history)]


class CopyGroup(threading.Thread):
    """Reads what a group has copied, as a read_committed consumer; records may come once only."""

    def __init__(self, name: str, bootstrap: str, partitions: int) -> None:
        super().__init__(daemon=True, name=name)
        self.restart_count = 0
        self.faults: list[str] = []
        self._seen = Tally()
        self._partitions = [TopicPartition(name, index, 0) for index in range(partitions)]
        self._is_stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"auditor-of-{name}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )

    def run(self) -> None:
        """Read until `stop`."""
        self._consumer.assign(self._partitions)
        while not self._is_stopping.is_set():
            for message in self._consumer.consume(500, timeout=POLL_S):
                error = message.error()
                if error is None:
                    self._seen.add(decode(message.value()))
                elif not error.retriable() and error.code() not in _PASSING:
                    self.faults.append(f"the auditor was told {error}")
        self._consumer.close()

    def stop(self) -> None:
        """Stop reading."""
        self._is_stopping.set()
        self.join(JOIN_S)

    def read_count(self) -> int:
        """See SoakGroup."""
        return self._seen.total

    def unread(self, log: Log) -> int:
        """See SoakGroup."""
        return sum(not self._seen[value] for value in _values(log))

    def found(self, log: Log) -> list[str]:
        """See SoakGroup."""
        known = set(_values(log))
        missing = (value for value in known if not self._seen[value])
        doubled = (pair for pair in self._seen.pairs() if self._seen[pair] > 1)
        invented = (pair for pair in self._seen.pairs() if pair not in known)
        return [
            *(f"{self.name}: {fault}" for fault in self.faults[:SHOWN]),
            *_sentences(f"{self.name} has not copied", missing),
            *_sentences(f"{self.name} has copied more than once", doubled),
            *_sentences(f"{self.name} has copied what nobody sent:", invented),
        ]


_PASSING: Final = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)


def _positions(log: Log) -> Iterator[Position]:
    return (Position(partition, offset) for partition in log for offset, _ in log[partition])


def _values(log: Log) -> Iterator[Value]:
    return (value for records in log.values() for _, value in records)


def _sentences(what: str, which: Iterable[tuple[int, int]]) -> list[str]:
    some = sorted(which)
    if not some:
        return []
    return [f"{what} {len(some)} records, such as {', '.join(map(str, some[:SHOWN]))}"]


# -- libraries in this process --------------------------------------------------------------------


class LibraryMember(threading.Thread):
    """A member of aiokafka or kafka-python, which commits automatically."""

    def __init__(self, group: ReadingGroup, bootstrap: str, topic: str, *, is_async: bool) -> None:
        super().__init__(daemon=True, name=group.name)
        self._group = group
        self._topic = topic
        self._is_async = is_async
        self._servers = bootstrap.split(",")
        self._is_stopping = threading.Event()

    def run(self) -> None:
        """Read until `stop`, with a new consumer after an error."""
        while not self._is_stopping.is_set():
            try:
                asyncio.run(self._read_async()) if self._is_async else self._read()
            except (AioKafkaError, PythonKafkaError):
                self._group.restart_count += 1
            except Exception as error:
                self._group.faults.append(repr(error))
                return

    def stop(self) -> None:
        """Leave the group and end."""
        self._is_stopping.set()
        self.join(JOIN_S)

    async def _read_async(self) -> None:
        consumer = AIOKafkaConsumer(
            self._topic,
            bootstrap_servers=self._servers,
            group_id=self._group.name,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=1_000,
            session_timeout_ms=SESSION_TIMEOUT_MS,
        )
        await consumer.start()
        try:
            while not self._is_stopping.is_set():
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        self._group.add(Position(record.partition, record.offset))
        finally:
            await consumer.stop()

    def _read(self) -> None:
        consumer = KafkaConsumer(
            self._topic,
            bootstrap_servers=self._servers,
            group_id=self._group.name,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=1_000,
            session_timeout_ms=SESSION_TIMEOUT_MS,
        )
        try:
            while not self._is_stopping.is_set():
                for records in consumer.poll(timeout_ms=200).values():
                    for record in records:
                        self._group.add(Position(record.partition, record.offset))
        finally:
            consumer.close()


# -- programs -------------------------------------------------------------------------------------


class ClientProgram:
    """A program whose lines begin with READ, AGAIN or FAULT and a group's name, and that ends with
    its standard input."""

    def __init__(
        self, command: Sequence[str], output: Path, groups: Mapping[str, ReadingGroup | CopyGroup]
    ) -> None:
        self._groups = groups
        self._output = output
        self._errors = output.with_suffix(".err").open("wb")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def stop(self) -> None:
        """Let it leave its groups and end; AssertionError with its last lines if it has failed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(JOIN_S)
        except subprocess.TimeoutExpired:
            status = -1
        self.kill()
        told = self._output.with_suffix(".err").read_text(errors="replace")[-2_000:]
        assert status == 0, f"{self._process.args!r} ended with {status}: {told}"

    def kill(self) -> None:
        """SIGKILL."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._listener.join(JOIN_S)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            stream.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._output.open("w") as kept:
            for line in self._process.stdout:
                kind, _, rest = line.strip().partition(" ")
                name, _, text = rest.partition(" ")
                group = self._groups.get(name)
                if kind == "READ" and isinstance(group, ReadingGroup):
                    partition, offset = text.split()
                    group.add(Position(int(partition), int(offset)))
                    continue
                kept.write(line)
                kept.flush()
                if kind == "AGAIN" and group is not None:
                    group.restart_count += 1
                elif kind == "FAULT" and group is not None:
                    group.faults.append(text)


def java_program(
    folder: Path, bootstrap: str, topic: str, groups: Mapping[str, ReadingGroup | CopyGroup]
) -> ClientProgram:
    """Kafka's own clients, in one process: the groups of JAVA_READERS and JAVA_COPIES."""
    folder.mkdir()
    classes = compile_application(folder, JAVA)
    (folder / "log4j2.yaml").write_text(LOG4J)
    command = ["java", "-Xmx512M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += [f"-Dlog4j2.configurationFile={folder / 'log4j2.yaml'}"]
    command += ["-cp", f"{classes}:{kafka_jars()}/*", JAVA.stem]
    return ClientProgram(
        [*command, bootstrap, topic, str(folder / "state"), *groups], folder / "output", groups
    )


def go_program(
    folder: Path,
    binary: Path,
    bootstrap: str,
    topic: str,
    groups: Mapping[str, ReadingGroup | CopyGroup],
) -> ClientProgram:
    """franz-go: the groups of GO_COPIES."""
    folder.mkdir()
    here = str(shutil.copy(binary, folder))
    command = [here, "-bootstrap", bootstrap, "-name", "soak", "-timeout", "24h", "soak", topic]
    return ClientProgram([*command, *groups], folder / "output", groups)
