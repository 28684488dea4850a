"""How far jobs are behind their topics: in records, bytes and seconds, by their groups' offsets.

Every job commits to a group `pipe.<name>`; so do queries with the stock connector (see
query_listener.py). Kafka counts offsets, not bytes: bytes are estimated from the first unread
records. Offsets of control records and of aborted transactions count as records, too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import committed_with_metadata
from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionRange
from odradek.pipeline.librdkafka import ClientErrors, open_client, reason_of
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.partition_reader import read_partition

GROUP_PREFIX: Final = "pipe."
_MARKS_SUFFIX: Final = ".dlq"
"""Of groups whose offsets are numbers of plans (dead_letters.py)."""

SAMPLE_ROWS: Final = 1_000
SAMPLE_BYTES: Final = 64 * 1024
TAIL_OFFSETS: Final = 100
"""At the end of the log, in which the newest record is looked for."""


@dataclass(frozen=True, slots=True)
class JobLag:
    """What a group has not read of a partition."""

    group: str
    topic: str
    partition: int
    committed: int
    end: int
    """The last stable offset."""
    records: int
    lost: int
    """Offsets above the committed one that the topic does not have any more."""
    bytes: int
    """Of keys, values and headers, not compressed."""
    is_estimate: bool
    """Whether `bytes` is computed from the size of the first unread records."""
    seconds: float
    """From the oldest unread record to the newest one, by their timestamps."""


def job_groups(properties: Mapping[str, str], *, timeout_s: float) -> list[str]:
    """The groups of all jobs of a cluster, sorted. `properties` are librdkafka's.

    PipelineError if a broker does not answer: groups of its own would be missing.
    """
    errors = ClientErrors()
    admin = open_client(AdminClient, {**properties, "error_cb": errors})
    try:
        listed = admin.list_consumer_groups(request_timeout=timeout_s).result()
        if listed.errors:
            raise KafkaException(listed.errors[0])
    except KafkaException as error:
        admin.poll(0)  # Only here it calls error_cb.
        raise PipelineError(
            f"cannot list groups of {properties['bootstrap.servers']}:"
            f" {reason_of(error)}{errors.explain()}"
        ) from error
    return sorted(
        each.group_id
        for each in listed.valid
        if each.group_id.startswith(GROUP_PREFIX) and not each.group_id.endswith(_MARKS_SUFFIX)
    )


def group_lag(
    cluster: KafkaCluster, properties: Mapping[str, str], group: str, *, timeout_s: float
) -> list[JobLag]:
    """The lag of each partition for which the group has an offset; those of topics that do not
    exist any more are left out."""
    found = committed_with_metadata(properties, group, None, timeout_s=timeout_s)
    views = cluster.topics({name.topic for name in found})
    names = [
        name
        for name in sorted(found)
        if name.topic in views and name.partition in views[name.topic].partition_ids
    ]
    if not names:
        return []
    starts = cluster.list_offsets(dict.fromkeys(names, EARLIEST), read_committed=True)
    ends = cluster.list_offsets(dict.fromkeys(names, LATEST), read_committed=True)
    lags = []
    for name in names:
        committed, end = found[name].offset, ends[name].offset
        position = min(max(committed, starts[name].offset), end)
        topic_id = views[name.topic].topic_id
        unread = _Unread.of(
            cluster, PartitionRange(name.topic, topic_id, name.partition, position, end)
        )
        lags.append(
            JobLag(
                group=group,
                topic=name.topic,
                partition=name.partition,
                committed=committed,
                end=end,
                records=end - position,
                lost=max(0, starts[name].offset - committed),
                bytes=unread.bytes,
                is_estimate=unread.is_estimate,
                seconds=unread.seconds,
            )
        )
    return lags


@dataclass(frozen=True, slots=True)
class _Unread:
    """What samples of an unread range say about it."""

    bytes: int
    is_estimate: bool
    seconds: float

    @classmethod
    def of(cls, cluster: KafkaCluster, unread: PartitionRange) -> "_Unread":
        first = next(_sample(cluster, unread), None)
        if first is None:
            return cls(0, False, 0.0)
        end = first.column("offset")[-1].as_py() + 1
        size = _bytes_of(first)
        if end < unread.end:
            # By offsets and not by records: what is no record has no bytes here, too.
            size = round(size * (unread.end - unread.start) / (end - unread.start))
        times = [first]
        tail = PartitionRange(
            unread.topic,
            unread.topic_id,
            unread.partition,
            max(end, unread.end - TAIL_OFFSETS),
            unread.end,
        )
        times += _sample(cluster, tail)
        oldest = times[0].column("timestamp")[0].cast(pa.int64()).as_py()
        newest = max(pc.max(each.column("timestamp").cast(pa.int64())).as_py() for each in times)
        seconds = max(0, newest - oldest) / 1_000_000
        return cls(size, end < unread.end, seconds)


def _sample(cluster: KafkaCluster, wanted: PartitionRange) -> Iterator[pa.RecordBatch]:
    if wanted.start >= wanted.end:
        return iter(())
    batches = read_partition(cluster, wanted, fetch_max_bytes=SAMPLE_BYTES, batch_rows=SAMPLE_ROWS)
    return islice(batches, 1)


def _bytes_of(batch: pa.RecordBatch) -> int:
    headers = batch.column("headers").flatten()
    columns = [batch.column("key"), batch.column("value"), headers.field("value")]
    texts = headers.field("key").cast(pa.binary())
    return sum(pc.sum(pc.binary_length(each)).as_py() or 0 for each in [*columns, texts])
