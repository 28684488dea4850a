"""Reads the dead-letter topic of jobs: `verify` all of it, `dlq` what nobody has handled yet.

Without a consumer and its group: the wire client reads committed records only, so the letters of a
plan are seen all or not at all.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from odradek.pipeline.jobs.dead_letter_index import DeadLetterIndex
from odradek.pipeline.jobs.dead_letters import JobLetter, read_letter
from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionName, PartitionRange
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.partition_reader import read_partition

TRANSACTION_S: Final = 65.0
"""Until the coordinator has aborted a transaction that its sender has left: librdkafka's default
of transaction.timeout.ms is a minute."""
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class KeptLetter:
    """A letter, and where it lies in the dead-letter topic."""

    partition: int
    offset: int
    sent_ms: int
    letter: JobLetter


@dataclass(frozen=True, slots=True)
class LetterRanges:
    """What a dead-letter topic has now."""

    ranges: tuple[PartitionRange, ...]
    """From the log start to the last stable offset."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the log is deleted."""
        return all(each.start == 0 for each in self.ranges)

    def after(self, positions: Mapping[PartitionName, int]) -> "LetterRanges":
        """What lies at or above these offsets."""
        return LetterRanges(
            tuple(
                PartitionRange(
                    each.topic,
                    each.topic_id,
                    each.partition,
                    min(max(each.start, positions.get(each.name, 0)), each.end),
                    each.end,
                )
                for each in self.ranges
            )
        )


def letter_ranges(cluster: KafkaCluster, topic: str) -> LetterRanges:
    """Empty if there is no such topic: then no record was bad yet.

    Waits for transactions that are being completed: whoever commits one hears of it before its
    records can be read.
    """
    view = cluster.topics([topic]).get(topic)
    if view is None:
        return LetterRanges(())
    names = [PartitionName(topic, each) for each in view.partition_ids]
    starts = cluster.list_offsets(dict.fromkeys(names, EARLIEST), read_committed=True)
    ends = _stable_ends(cluster, names)
    return LetterRanges(
        tuple(
            PartitionRange(
                topic,
                view.topic_id,
                name.partition,
                min(starts[name].offset, ends[name]),
                ends[name],
            )
            for name in names
        )
    )


def _stable_ends(cluster: KafkaCluster, names: list[PartitionName]) -> dict[PartitionName, int]:
    """The last stable offsets, once they are behind all that is in the topic now."""
    latest = dict.fromkeys(names, LATEST)
    wanted = cluster.list_offsets(latest, read_committed=False)
    deadline = time.monotonic() + TRANSACTION_S
    while True:
        found = cluster.list_offsets(latest, read_committed=True)
        is_stable = all(found[name].offset >= wanted[name].offset for name in names)
        if is_stable or time.monotonic() > deadline:
            return {name: found[name].offset for name in names}
        time.sleep(_POLL_S)


def read_letters(
    cluster: KafkaCluster, ranges: LetterRanges, group: str | None = None
) -> Iterator[KeptLetter]:
    """The letters of a job's group, or of all jobs, by partition and offset."""
    for wanted in ranges.ranges:
        if wanted.start == wanted.end:
            continue
        for batch in read_partition(cluster, wanted):
            yield from _letters_of(batch, group)


def _letters_of(batch: pa.RecordBatch, group: str | None) -> Iterator[KeptLetter]:
    sent = batch.column("timestamp").cast(pa.int64()).to_pylist()
    columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value")]
    headers = batch.column("headers").to_pylist()
    for partition, offset, key, value, sent_us, of_record in zip(
        *columns, sent, headers, strict=True
    ):
        letter = read_letter(key, value, [(each["key"], each["value"]) for each in of_record or ()])
        if letter is not None and group in (None, letter.group):
            yield KeptLetter(partition, offset, sent_us // 1000, letter)


def letter_index(cluster: KafkaCluster, topic: str, group: str) -> DeadLetterIndex:
    """All letters of a job, by the offsets of their records."""
    ranges = letter_ranges(cluster, topic)
    letters = read_letters(cluster, ranges, group)
    return DeadLetterIndex((each.letter.record for each in letters), is_complete=ranges.is_complete)
