"""Kafka Streams, Kafka's own library: exactly once on the classic protocol, and on streams groups.

The application counts words (tests/conformance/java/WordCount.java): a repartition topic, a store
with a changelog. Every count of a word must come once and in turn, whatever happens to the
application meanwhile.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tests.conformance.dialogue import DialogueCluster, unique
from tests.support.java import run_java_tool
from tests.support.streams_application import (
    StreamsApplication,
    compile_application,
    why_no_streams,
)
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(why_no_streams()), reason=why_no_streams() or "Kafka Streams is there"),
]

TIMEOUT_S = 120.0
STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
LINES = [f"w{number % 7} w{number % 3} all" for number in range(300)]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application, compiled."""
    return compile_application(tmp_path_factory.mktemp("classes"))


class Counts:
    """What the application has counted, as a reader of committed records sees it."""

    def __init__(self, cluster: DialogueCluster, topic: str) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": unique("counts"),
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        # Not as a member: librdkafka never reads a partition whose committed offset it asks for in
        # the moment in which the coordinator moves (confluentinc/librdkafka#5586).
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

    def wait_for(self, words: Mapping[str, int]) -> None:
        """Read until every word has been counted so often."""

        def is_there() -> bool:
            message = self._consumer.poll(0.2)
            if message is not None:
                key, value = message.key(), message.value()
                assert message.error() is None
                assert key is not None
                assert value is not None
                self.seen[key.decode()].append(int(value))
            return all(self.seen[word] and self.seen[word][-1] >= n for word, n in words.items())

        try:
            wait_until(is_there, timeout_s=TIMEOUT_S, what=f"counts of {words}")
        except AssertionError as error:
            raise AssertionError(f"{error}; seen: {dict(self.seen)}") from error

    def close(self) -> None:
        self._consumer.close()


def write(cluster: DialogueCluster, topic: str, lines: list[str]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number, line in enumerate(lines):
        producer.produce(topic, line, partition=number % 2)
    assert producer.flush(TIMEOUT_S) == 0


def words_of(lines: list[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split())


def test_exactly_once_survives_a_kill_in_the_middle(
    cluster: DialogueCluster, tmp_path: Path, classes: Path
) -> None:
    source, target = cluster.new_topic(2), cluster.new_topic(1)
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "application.id": unique("exactly-once"),
        "processing.guarantee": "exactly_once_v2",
        # A static member: the next instance goes on without waiting for a session to end.
        "group.instance.id": "one",
        "commit.interval.ms": "50",
        "statestore.cache.max.bytes": "0",
        "transaction.timeout.ms": "2000",
        "auto.offset.reset": "earliest",
        "replication.factor": "1",
    }
    counts = Counts(cluster, target)
    half = len(LINES) // 2
    with StreamsApplication(
        tmp_path / "first", classes=classes, source=source, target=target, settings=settings
    ) as first:
        first.wait_until_running()
        write(cluster, source, LINES[:half])
        counts.wait_for({"all": 20})
    with StreamsApplication(
        tmp_path / "second", classes=classes, source=source, target=target, settings=settings
    ) as second:
        write(cluster, source, LINES[half:])
        expected = words_of(LINES)
        counts.wait_for(expected)
        second.close()
    counts.close()
    assert counts.seen == {word: list(range(1, n + 1)) for word, n in expected.items()}


def test_an_application_runs_on_a_streams_group(
    cluster: DialogueCluster, tmp_path: Path, classes: Path
) -> None:
    source, target = cluster.new_topic(2), cluster.new_topic(1)
    application = unique("streams")
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "application.id": application,
        "group.protocol": "streams",
        "processing.guarantee": "exactly_once_v2",
        "num.stream.threads": "2",
        "commit.interval.ms": "50",
        "statestore.cache.max.bytes": "0",
        "auto.offset.reset": "earliest",
        "replication.factor": "1",
    }
    write(cluster, source, LINES)
    counts = Counts(cluster, target)
    with StreamsApplication(
        tmp_path / "one", classes=classes, source=source, target=target, settings=settings
    ) as running:
        running.wait_until_running()
        expected = words_of(LINES)
        counts.wait_for(expected)
        told = run_java_tool(
            STREAMS_GROUPS,
            *("--bootstrap-server", cluster.bootstrap, "--describe", "--group", application),
            *("--members", "--verbose"),
            directory=tmp_path,
            timeout_s=TIMEOUT_S,
        )
        running.close()
    counts.close()
    assert counts.seen == {word: list(range(1, n + 1)) for word, n in expected.items()}
    # A table with a line for each thread.
    assert told.stdout.count(application) >= 2, told.stdout + told.stderr
    assert "ACTIVE" in told.stdout
