"""The mark by which a task knows that its part of a batch is in Kafka already.

It is the metadata of an offset that is committed in the task's own transaction: records and mark
become visible together, or neither does. Each task of a query has a group of its own,
`<prefix>-<task>`, named like its transactional id; the offset is the number of the batch, committed
for partition 0 of a topic that the task writes to. Called by task_writer.py and writers.py.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import committed_with_metadata

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMark:
    """What a task has committed."""

    query: str
    """Spark's id of the query, which is in its checkpoint: batches are numbered within it."""
    run: str
    """Spark's id of the run: another one after each start."""
    batch: int
    task: int
    rows: int
    checksum: str

    def text(self) -> str:
        """As the metadata of an offset."""
        return json.dumps({"odradek.sink": _VERSION, **asdict(self)}, separators=(",", ":"))

    def has_same_rows(self, other: "BatchMark") -> bool:
        """Whether both tell of the same records."""
        return (self.rows, self.checksum) == (other.rows, other.checksum)


def mark_of(text: str) -> BatchMark | None:
    """The mark in an offset's metadata; None if the metadata is somebody else's."""
    try:
        fields = json.loads(text)
        if fields.pop("odradek.sink") != _VERSION:
            return None
        return BatchMark(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def last_mark(
    properties: Mapping[str, str], group: str, query: str, *, timeout_s: float
) -> BatchMark | None:
    """The newest mark of this query in a task's group. There are several after a task wrote to
    several topics, and those of another query if the prefix was used before."""
    found = committed_with_metadata(properties, group, None, timeout_s=timeout_s)
    marks = (mark_of(each.metadata) for each in found.values())
    own = (mark for mark in marks if mark is not None and mark.query == query)
    return max(own, key=lambda mark: mark.batch, default=None)


def check_whole_batch(found: Iterable[BatchMark], written: Mapping[int, BatchMark]) -> None:
    """PipelineError unless every mark that Kafka has of this batch is of a task that has written
    the same rows in this run.

    It finds what no task can see: that a restarted batch has fewer tasks, or that a task which had
    rows has none.
    """
    for mark in found:
        mine = written.get(mark.task)
        if mine is None or not mark.has_same_rows(mine):
            raise differing_batch(mark, "none" if mine is None else str(mine.rows))


def differing_batch(mark: BatchMark, rows: str) -> PipelineError:
    """The error for a batch that is not the one of which a part is committed."""
    return PipelineError(
        f"batch {mark.batch} of query {mark.query} is not the same as before the restart: task"
        f" {mark.task} has committed {mark.rows} rows to Kafka and now has other rows ({rows});"
        " a query with this sink needs a replayable source and a plan that gives the same"
        " partitions again (no change of repartition, minPartitions, or random functions)."
        " Restart it with the plan it had"
    )
