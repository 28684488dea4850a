"""What a job is about to do and what it has done: plans, files and commits, and their JSON.

A plan is written before anything runs and has the exact offsets of each partition. A plan that was
written and not committed runs again as it is, so everything it does has the same number: the
transaction of its dead letters, the version of a Delta application, the property of an Iceberg
table, the commit file of a Parquet table. Each of these skips a number that it has.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionName, PartitionRange


@dataclass(frozen=True, slots=True)
class TableJob:
    """What may never change about the job that writes a table: it would make other rows of the
    same records, or rows of other records."""

    name: str
    topics: tuple[str, ...]
    """Names; empty if `topic_pattern` chooses them."""
    topic_pattern: str
    format: str
    """parquet, delta or iceberg"""
    value_format: str
    """raw, json, avro or protobuf"""
    time_partition: str
    """date, hour or none"""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The offsets that one trigger of a job moves. Numbers begin with 1 and have no gaps."""

    job: str
    number: int
    ranges: tuple[PartitionRange, ...]

    def to_json(self) -> str:
        """As it is kept in the table's folder."""
        return json.dumps(
            {
                "job": self.job,
                "number": self.number,
                "ranges": [
                    {
                        "topic": each.topic,
                        "topic_id": each.topic_id,
                        "partition": each.partition,
                        "start": each.start,
                        "end": each.end,
                    }
                    for each in self.ranges
                ],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> "JobPlan":
        """PipelineError, which names the file, if that is no plan."""
        found = json_object(text, where)
        try:
            ranges = tuple(PartitionRange(**each) for each in found["ranges"])
            return cls(str(found["job"]), int(found["number"]), ranges)
        except (KeyError, TypeError, ValueError) as error:
            raise PipelineError(f"{where} is no plan of a job: {error!r}") from error


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file that a task wrote into the staging folder of its plan.

    It holds records of one partition and, if the table is partitioned by time, of one time. Of a
    file that a compaction wrote this is a part: the rows of one partition.
    """

    path: str
    """Below the table's folder when it is committed: `kafka_date=2026-11-23/...parquet`."""
    time: str
    """Of the time partition; empty without one."""
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    """Inclusive: that of its last row."""
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TopicEnds:
    """Where a table begins and ends in a topic: each range is `[starts[p], ends[p])`."""

    topic_id: str
    """Empty if the cluster has none."""
    starts: Mapping[int, int]
    """The offset of each partition at which the job began."""
    ends: Mapping[int, int]
    """The offset of each partition at which the next plan begins."""


@dataclass(frozen=True, slots=True)
class JobCommit:
    """What a table holds after a plan of a job was committed."""

    job: str
    number: int
    topics: Mapping[str, TopicEnds]
    rows: int
    """That this plan added."""
    bad: int
    """Records of this plan that went to the dead-letter topic."""
    bytes: int
    """Of the Parquet files that this plan added."""
    committed_ms: int
    files: tuple[DataFile, ...] = field(default=(), repr=False)

    @property
    def ends(self) -> dict[PartitionName, int]:
        """The offset of each partition at which the next plan begins."""
        return {
            PartitionName(topic, partition): end
            for topic, at in self.topics.items()
            for partition, end in at.ends.items()
        }

    def to_json(self, schema: pa.Schema) -> str:
        """As it is kept in the table's folder, with the table's schema."""
        return json.dumps(
            {
                "job": self.job,
                "number": self.number,
                "topics": {
                    topic: {
                        "topic_id": at.topic_id,
                        "starts": {str(name): offset for name, offset in at.starts.items()},
                        "ends": {str(name): offset for name, offset in at.ends.items()},
                    }
                    for topic, at in self.topics.items()
                },
                "rows": self.rows,
                "bad": self.bad,
                "bytes": self.bytes,
                "committed_ms": self.committed_ms,
                "files": [
                    {name: getattr(each, name) for name in DataFile.__slots__}
                    for each in self.files
                ],
                "schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> "tuple[JobCommit, pa.Schema]":
        """The commit and the table's schema; PipelineError, which names the file, if it is none."""
        found = json_object(text, where)
        try:
            topics = {
                topic: TopicEnds(
                    at["topic_id"],
                    {int(name): offset for name, offset in at["starts"].items()},
                    {int(name): offset for name, offset in at["ends"].items()},
                )
                for topic, at in found["topics"].items()
            }
            commit = cls(
                str(found["job"]),
                int(found["number"]),
                topics,
                int(found["rows"]),
                int(found["bad"]),
                int(found["bytes"]),
                int(found["committed_ms"]),
                tuple(DataFile(**each) for each in found["files"]),
            )
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["schema"])))
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise PipelineError(f"{where} is no commit of a job: {error!r}") from error
        return commit, schema


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What the tasks of a plan did."""

    files: tuple[DataFile, ...]
    bad: int
    committed_ms: int
    """The time of the commit; a commit that is made again after a crash keeps it."""
    schema: pa.Schema
    """Of the rows: what the table does not have is added to it."""


def commit_of(plan: JobPlan, result: PlanResult, before: JobCommit | None) -> JobCommit:
    """The commit of a plan that follows the table's last one."""
    topics: dict[str, tuple[str, dict[int, int], dict[int, int]]] = {
        topic: (at.topic_id, dict(at.starts), dict(at.ends))
        for topic, at in (before.topics if before is not None else {}).items()
    }
    for each in plan.ranges:
        _, starts, ends = topics.setdefault(each.topic, (each.topic_id, {}, {}))
        starts.setdefault(each.partition, each.start)
        ends[each.partition] = each.end
    return JobCommit(
        job=plan.job,
        number=plan.number,
        topics={topic: TopicEnds(*at) for topic, at in topics.items()},
        rows=sum(each.rows for each in result.files),
        bad=result.bad,
        bytes=sum(each.bytes for each in result.files),
        committed_ms=result.committed_ms,
        files=result.files,
    )


def json_object(text: str, where: str) -> dict[str, Any]:
    """PipelineError, which names the file, if the text is none."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise PipelineError(f"{where} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise PipelineError(f"{where} is no JSON object")
    return found
