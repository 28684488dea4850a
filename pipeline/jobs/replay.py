"""`replay`: a table that `offload` has filled goes back into a topic.

Keys, values, headers, timestamps, partitions and the order within them are those of the records.
Offsets are new: gaps of the source (markers of transactions, compacted records) are not filled.
Rows are read in windows of offsets, which the table's commits tell without reading a file, and
sorted: memory holds one window. No Spark: a partition's order allows one producer only, and the
files are read by pyarrow.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.copy_options import ReplayOptions
from odradek.pipeline.jobs.copy_progress import CopyPosition, read_positions
from odradek.pipeline.jobs.target_topics import TopicAdmin, check_empty, partition_ends
from odradek.pipeline.jobs.transactional_copy import TransactionalCopy
from odradek.pipeline.jobs.wire_options import open_cluster, timeout_s
from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.librdkafka import client_properties
from odradek.pipeline.tables.exact_scan import ExactScan
from odradek.pipeline.tables.job_plan import DataFile, TopicEnds
from odradek.pipeline.tables.target import TableTarget, open_table
from odradek.pipeline.values.raw_values import RAW_COLUMN
from odradek.pipeline.wire.cluster import KafkaCluster

_WINDOW_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of files, which are compressed: a window is in memory as a whole."""
_COLUMNS: Final[Mapping[str, str]] = {
    "kafka_key": "key",
    RAW_COLUMN: "value",
    "kafka_offset": "offset",
    "kafka_timestamp": "timestamp",
    "kafka_headers": "headers",
}


@dataclass(slots=True)
class ReplayResult:
    """What a run did."""

    rows: int = 0
    resumed: int = 0
    """Partitions that were begun before."""
    expired: int = 0
    """Records that are older than the topic's retention.ms: the broker may delete them at once."""
    zero_timestamps: int = 0
    """Records whose time 0 (1970) became 1 ms."""


def replay(
    options: ReplayOptions, on_progress: Callable[[PartitionName, int], None] = lambda *_: None
) -> ReplayResult:
    """Copy what the table has beyond the last run, until its last commit. `on_progress` gets the
    source's partition and next offset after each transaction."""
    target = open_table("", options.table, options.table_options)
    topic, ends = _topic_of(target, options)
    _check_bytes(target)
    job = target.job()
    source = f"table {job.name if job is not None else ''} topic {topic}"
    properties = client_properties(options.kafka, bootstrap_servers=options.bootstrap_servers)
    patience = timeout_s(options.kafka)
    partitions = [PartitionName(options.to, each) for each in sorted(ends.ends)]
    result = ReplayResult()
    with (
        open_cluster(options.bootstrap_servers, options.kafka) as cluster,
        TransactionalCopy(properties, options.name, timeout_s=patience) as copy,
    ):
        view = cluster.topics([options.to]).get(options.to)
        existing = None if view is None else len(view.partition_ids)
        admin = TopicAdmin(properties, timeout_s=patience)
        admin.ensure(
            options.to,
            max(ends.ends) + 1,
            existing,
            # Records are as old as they were: the default of 7 days would delete them at once.
            configs={"retention.ms": "-1"},
            replication_factor=options.replication_factor,
        )
        retention_ms = admin.retention_ms(options.to)
        positions = read_positions(
            properties, copy.group, partitions, source=source, timeout_s=patience
        )
        result.resumed = len(positions)
        _begin(cluster, copy, options, ends, source, partitions, positions)
        files, scan = _files_of(target, topic), ExactScan(target)
        for each in partitions:
            wanted = PartitionRange(
                topic,
                ends.topic_id,
                each.partition,
                positions[each].next_offset,
                ends.ends[each.partition],
            )
            for window in windows_of(files, wanted, options.rows_per_transaction):
                rows = _rows(scan, target.location, window)
                copy.begin()
                copy.send(each, rows)
                runs = copy.flush()[each]
                end = (
                    runs[-1].target_offset + runs[-1].records
                    if runs
                    else positions[each].target_end
                )
                positions[each] = CopyPosition(
                    source=source, topic_id=ends.topic_id, next_offset=window.end, target_end=end
                )
                copy.commit({each: positions[each]})
                result.rows += rows.num_rows
                result.expired += _expired(rows, retention_ms)
                on_progress(window.name, window.end)
        result.zero_timestamps = copy.zero_timestamps
    return result


def _expired(rows: pa.Table, retention_ms: int | None) -> int:
    if retention_ms is None or not rows.num_rows:
        return 0
    limit_us = (round(time.time() * 1000) - retention_ms) * 1000
    times = rows.column("timestamp").cast(pa.int64())
    return int(pc.sum(pc.less(times, limit_us)).as_py() or 0)


def windows_of(
    files: Sequence[DataFile], wanted: PartitionRange, rows_max: int
) -> Iterator[PartitionRange]:
    """Ranges that follow each other and cover `wanted`, with about `rows_max` rows at most.

    Files may overlap (those of one plan differ by time); a file that is larger than a window is
    divided by its offsets.
    """
    start, fill = wanted.start, 0.0
    for first, end, share in sorted(
        (file.first_offset, file.last_offset + 1, _share(file, rows_max))
        for file in files
        if (file.topic, file.partition) == wanted.name
    ):
        parts = math.ceil(share)
        for part in range(parts):
            cut = first + (end - first) * part // parts
            if fill + share / parts > 1 and start < cut < wanted.end:
                yield replace(wanted, start=start, end=cut)
                start, fill = cut, 0.0
            if first + (end - first) * (part + 1) // parts > start:
                fill += share / parts
    if start < wanted.end:
        yield replace(wanted, start=start)


def _share(file: DataFile, rows_max: int) -> float:
    """How many windows the file fills."""
    return max(file.rows / rows_max, file.bytes / _WINDOW_BYTES_MAX)


def _topic_of(target: TableTarget, options: ReplayOptions) -> tuple[str, TopicEnds]:
    commit = target.last_commit()
    if commit is None or not commit.topics:
        raise PipelineError(f"table {options.table} has no commit yet: run its offload first")
    names = ", ".join(sorted(commit.topics))
    if not options.topic and len(commit.topics) > 1:
        raise PipelineError(f"table {options.table} has the topics {names}: choose one by --topic")
    topic = options.topic or next(iter(commit.topics))
    if topic not in commit.topics:
        raise PipelineError(f"table {options.table} has no topic {topic}; it has {names}")
    return topic, commit.topics[topic]


def _check_bytes(target: TableTarget) -> None:
    """Decoded values are not the bytes that were sent: a schema's encoding is not unique."""
    schema = target.schema()
    column = schema.field(RAW_COLUMN) if schema and RAW_COLUMN in schema.names else None
    if column is None or not pa.types.is_binary(column.type):
        job = target.job()
        raise PipelineError(
            f"table {target.location} has no column {RAW_COLUMN}: its values are decoded"
            f" ({job.value_format if job is not None else 'not raw'}) and their bytes are gone;"
            " only a table of value.format raw can be replayed"
        )


def _begin(
    cluster: KafkaCluster,
    copy: TransactionalCopy,
    options: ReplayOptions,
    ends: TopicEnds,
    source: str,
    partitions: Sequence[PartitionName],
    positions: dict[PartitionName, CopyPosition],
) -> None:
    """Write down where partitions begin that were never copied: after that the topic is ours, also
    if the first transaction is killed and leaves aborted records."""
    fresh = [name for name in partitions if name not in positions]
    if not fresh:
        return
    if not options.append:
        check_empty(cluster, fresh)
    target_ends = partition_ends(cluster, fresh)
    begun = {
        name: CopyPosition(
            source=source,
            topic_id=ends.topic_id,
            next_offset=ends.starts.get(name.partition, 0),
            target_end=target_ends[name],
        )
        for name in fresh
    }
    copy.begin()
    copy.commit(begun)
    positions.update(begun)


def _files_of(target: TableTarget, topic: str) -> list[DataFile]:
    return [file for file in target.files() if file.topic == topic]


def _rows(scan: ExactScan, location: str, window: PartitionRange) -> pa.Table:
    """The rows of a window as records, sorted; PipelineError if an offset is there twice."""
    batches = scan.read([*_COLUMNS], window)
    if not batches:
        return pa.table({name: [] for name in _COLUMNS.values()}).cast(_SCHEMA)
    found = pa.Table.from_batches(batches).rename_columns([*_COLUMNS.values()]).sort_by("offset")
    offsets = found.column("offset").combine_chunks()
    if len(offsets) > 1 and pc.any(pc.equal(offsets[1:], offsets[:-1])).as_py():
        raise PipelineError(
            f"table {location} has an offset of {window.name} twice between"
            f" {window.start} and {window.end}: run `odradek pipe verify`"
        )
    return found


_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
