"""The map of a mirror's offsets: a compacted topic `mirror.<name>.offsets` in the target.

Each record is a run: records whose offsets follow each other on both sides. Its key is the source's
topic, partition and first offset, its value the target's first offset and the number of records;
both are JSON. Runs are written in the transaction of the records that they tell of, so the map has
what is there and nothing else. Called by mirror.py, and by whoever has to find a record again.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.transactional_copy import OffsetRun
from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionName, PartitionRange
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.partition_reader import read_partition


def map_topic(name: str) -> str:
    """The topic of a mirror."""
    return f"mirror.{name}.offsets"


def is_map_topic(topic: str) -> bool:
    """Whether it is the map of some mirror, which no pattern means."""
    return topic.startswith("mirror.") and topic.endswith(".offsets")


def run_record(source: PartitionName, run: OffsetRun) -> tuple[bytes, bytes]:
    """(key, value)."""
    key = {"topic": source.topic, "partition": source.partition, "offset": run.source_offset}
    value = {"target_offset": run.target_offset, "records": run.records}
    return _json(key), _json(value)


def runs_in(cluster: KafkaCluster, topic: str) -> Iterator[tuple[PartitionName, OffsetRun]]:
    """All runs of the map with the source's partition; none if there is no map yet."""
    view = cluster.topics([topic]).get(topic)
    if view is None:
        return
    name = PartitionName(topic, 0)
    start = cluster.list_offsets({name: EARLIEST}, read_committed=True)[name].offset
    end = cluster.list_offsets({name: LATEST}, read_committed=True)[name].offset
    wanted = PartitionRange(topic, view.topic_id, 0, start, end)
    for batch in read_partition(cluster, wanted, with_headers=False):
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                yield _run_of(topic, key, value)


@dataclass(slots=True)
class _Nearest:
    before: OffsetRun | None = None
    """The last run that begins at or before the offset."""
    after: OffsetRun | None = None


def translate(
    runs: Iterator[tuple[PartitionName, OffsetRun]],
    wanted: Mapping[PartitionName, Collection[int]],
) -> dict[PartitionName, dict[int, int]]:
    """For offsets of the source (the next ones to be read) those of the target; one pass, in which
    only what is wanted is kept.

    An offset between runs is the end of the run before it, one below all runs the first mirrored
    record. So a reader there misses nothing and reads nothing twice, but for what the mirror has
    not read yet: an offset beyond it becomes the end of what it has. Left out where there are no
    runs.
    """
    nearest = {name: {offset: _Nearest() for offset in offsets} for name, offsets in wanted.items()}
    for name, run in runs:
        for offset, near in nearest.get(name, {}).items():
            if run.source_offset <= offset:
                if near.before is None or run.source_offset > near.before.source_offset:
                    near.before = run
            elif near.after is None or run.source_offset < near.after.source_offset:
                near.after = run
    return {
        name: {offset: _place(offset, near) for offset, near in found.items() if _is_known(near)}
        for name, found in nearest.items()
    }


def _is_known(near: _Nearest) -> bool:
    return near.before is not None or near.after is not None


def _place(offset: int, near: _Nearest) -> int:
    if near.before is not None:
        run = near.before
        return run.target_offset + min(offset - run.source_offset, run.records)
    return near.after.target_offset if near.after is not None else -1


def _run_of(topic: str, key: bytes | None, value: bytes) -> tuple[PartitionName, OffsetRun]:
    try:
        source, target = json.loads(key or b""), json.loads(value)
        name = PartitionName(str(source["topic"]), int(source["partition"]))
        run = OffsetRun(int(source["offset"]), int(target["target_offset"]), int(target["records"]))
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(
            f"topic {topic} has a record that is no offset of a mirror ({error!r}): somebody else"
            " writes to it"
        ) from error
    return name, run


def _json(found: object) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()
