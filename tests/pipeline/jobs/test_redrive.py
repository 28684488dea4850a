"""Dead letters become records again: once, as they were, also when it is interrupted."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from uuid import uuid4

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs import redrive
from odradek.pipeline.jobs.dead_letter_reader import KeptLetter, LetterRanges, letter_ranges
from odradek.pipeline.jobs.dead_letters import DeadLetterSender
from odradek.pipeline.jobs.redrive import FROM_HEADER, JobLetters, Redrive
from odradek.pipeline.tables.rows import BadRecord
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.partition_reader import read_partition
from tests.support.topic_records import TopicRecords

TIMEOUT_S = 30.0


@pytest.fixture
def letters(kafka_broker: EmbeddedBroker) -> Iterator[JobLetters]:
    """A job with 1,100 letters of a topic with two partitions."""
    name = f"redrive-{uuid4().hex[:12]}"
    properties = {"bootstrap.servers": kafka_broker.bootstrap_servers, "log_level": "0"}
    TopicRecords(properties).create(name, partitions=2)
    _send(properties, name, 1, range(1_100))
    with KafkaCluster(kafka_broker.bootstrap_servers) as cluster:
        yield JobLetters(cluster, properties, name, f"{name}.dlq", TIMEOUT_S)


def _send(properties: dict[str, str], name: str, plan: int, numbers: range) -> None:
    with DeadLetterSender(properties, f"pipe.{name}", f"{name}.dlq", timeout_s=TIMEOUT_S) as sender:
        sender.send(
            plan,
            [
                BadRecord(
                    topic=name,
                    partition=number % 2,
                    offset=number,
                    timestamp_ms=1_760_000_000_000 + number,
                    reason="no JSON",
                    key=b"%d" % number,
                    value=None if number == 7 else b"{%d" % number,
                    headers=(("trace", b"1"), ("none", None)),
                )
                for number in numbers
            ],
        )


def _records(letters: JobLetters, topic: str) -> list[dict[str, object]]:
    """All committed records, by partition."""
    return [
        row
        for wanted in letter_ranges(letters.cluster, topic).ranges
        for batch in read_partition(letters.cluster, wanted)
        for row in batch.to_pylist()
    ]


def test_records_are_sent_again_as_they_were_and_once(letters: JobLetters) -> None:
    with Redrive(letters) as run:
        assert run.run() == 1_100
    with Redrive(letters) as run:
        assert run.run() == 0

    found = _records(letters, letters.name)
    wanted = [*range(0, 1_100, 2), *range(1, 1_100, 2)]
    assert [each["key"] for each in found] == [b"%d" % number for number in wanted]
    seventh = next(each for each in found if each["key"] == b"7")
    assert (seventh["value"], seventh["partition"]) == (None, 1)
    assert seventh["headers"] == [
        {"key": "trace", "value": b"1"},
        {"key": "none", "value": None},
        {"key": FROM_HEADER, "value": f"{letters.topic}-0 offset 7".encode()},
    ]
    timestamps = {row["key"]: row["timestamp"] for row in found}
    first, last = timestamps[b"0"], timestamps[b"1099"]
    assert (last - first).total_seconds() == 1.099  # type: ignore[operator]  # datetimes


def test_only_later_letters_are_sent_after_that(letters: JobLetters) -> None:
    with Redrive(letters) as run:
        run.run()
    _send(dict(letters.properties), letters.name, 2, range(2_000, 2_003))

    assert [each.letter.record.offset for each in letters.read(letters.pending_ranges())] == [
        *range(2_000, 2_003)
    ]
    with Redrive(letters) as run:
        assert run.run() == 3


def test_records_may_go_to_another_topic(letters: JobLetters) -> None:
    other = f"{letters.name}-other"
    TopicRecords(letters.properties).create(other)
    with Redrive(letters, other) as run:
        assert run.run() == 1_100

    assert len(_records(letters, other)) == 1_100
    nowhere = pytest.raises(PipelineError, match="topic nowhere does not exist: create it first")
    with Redrive(letters, "nowhere") as run, nowhere:
        run.run()


def test_an_interrupted_redrive_goes_on_without_sending_twice(letters: JobLetters) -> None:
    # The second transaction is sent and never committed: the process ends before.
    driver = """if True:
        import os, sys
        from odradek.pipeline.jobs import redrive
        from odradek.pipeline.wire.cluster import KafkaCluster
        bootstrap, name = sys.argv[1:]
        properties = {"bootstrap.servers": bootstrap, "log_level": "0"}
        letters = redrive.JobLetters(
            KafkaCluster(bootstrap), properties, name, f"{name}.dlq", 30
        )
        with redrive.Redrive(letters) as run:
            asked = []
            ask = run._ask
            def ask_and_die(what, call):
                asked.append(what)
                if asked.count("commit") == 4:
                    os._exit(9)
                ask(what, call)
            run._ask = ask_and_die
            run.run()
        """
    bootstrap = letters.properties["bootstrap.servers"]
    ended = subprocess.run(
        [sys.executable, "-c", driver, bootstrap, letters.name], timeout=60, check=False
    )
    assert ended.returncode == 9

    with Redrive(letters) as again:
        assert again.run() == 600
    keys = [each["key"] for each in _records(letters, letters.name)]
    assert len(keys) == len(set(keys)) == 1_100


def test_another_process_is_fenced(letters: JobLetters) -> None:
    with Redrive(letters) as older, Redrive(letters) as newer:
        with pytest.raises(PipelineError, match="another process redrives"):
            older.run()
        assert newer.run() == 1_100


class EndlessLetters(JobLetters):
    """The same ones again and again."""

    def read(self, ranges: LetterRanges) -> Iterator[KeptLetter]:
        return cycle([*super().read(ranges)])


def test_another_process_is_fenced_before_it_has_sent_a_transaction(
    letters: JobLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive, "TRANSACTION_LETTERS", 200_000)
    same = EndlessLetters(
        letters.cluster, letters.properties, letters.name, letters.topic, TIMEOUT_S
    )
    with Redrive(same) as older, Redrive(letters) as newer:
        with pytest.raises(PipelineError, match="another process redrives"):
            older.run()
        assert newer.run() == 1_100


def test_dropped_letters_are_handled_and_stay(letters: JobLetters) -> None:
    assert letters.drop() == 1_100
    assert letters.drop() == 0
    with Redrive(letters) as run:
        assert run.run() == 0
    assert len(_records(letters, letters.topic)) == 1_100


def test_a_job_without_letters_is_told(letters: JobLetters) -> None:
    unknown = JobLetters(letters.cluster, letters.properties, "never", "never.dlq", TIMEOUT_S)
    with pytest.raises(PipelineError, match=r"dead-letter topic never\.dlq does not exist"):
        unknown.drop()
