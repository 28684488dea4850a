"""Plans and commits survive their JSON, and a commit goes on from the one before."""

import pyarrow as pa
import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.tables.job_plan import (
    DataFile,
    JobCommit,
    JobPlan,
    PlanResult,
    TopicEnds,
    commit_of,
)

SCHEMA = pa.schema([pa.field("kafka_offset", pa.int64()), pa.field("id", pa.decimal128(9, 2))])
FILE = DataFile("kafka_date=2026-11-23/a.parquet", "2026-11-23", "orders", 1, 10, 19, 9, 4096)


def plan(number: int, *ranges: tuple[str, int, int, int]) -> JobPlan:
    return JobPlan(
        "archive",
        number,
        tuple(
            PartitionRange(topic, f"id-of-{topic}", partition, start, end)
            for topic, partition, start, end in ranges
        ),
    )


def test_a_plan_is_the_same_after_its_json() -> None:
    before = plan(7, ("orders", 0, 5, 9), ("bills", 1, 0, 3))
    assert JobPlan.from_json(before.to_json(), "7.json") == before


def test_a_commit_is_the_same_after_its_json_and_brings_the_schema() -> None:
    result = PlanResult((FILE,), bad=1, committed_ms=1_795_478_399_999, schema=SCHEMA)
    before = commit_of(plan(1, ("orders", 1, 10, 20)), result, None)
    assert JobCommit.from_json(before.to_json(SCHEMA), "1.json") == (before, SCHEMA)
    assert (before.rows, before.bad, before.bytes) == (9, 1, 4096)


def test_a_commit_keeps_partitions_that_its_plan_did_not_touch() -> None:
    nothing = PlanResult((), bad=0, committed_ms=1, schema=SCHEMA)
    first = commit_of(plan(1, ("orders", 0, 5, 9), ("orders", 1, 0, 3)), nothing, None)
    second = commit_of(plan(2, ("orders", 1, 3, 4), ("bills", 0, 2, 3)), nothing, first)
    assert second.topics == {
        "orders": TopicEnds("id-of-orders", {0: 5, 1: 0}, {0: 9, 1: 4}),
        "bills": TopicEnds("id-of-bills", {0: 2}, {0: 3}),
    }
    assert second.ends == {
        PartitionName("orders", 0): 9,
        PartitionName("orders", 1): 4,
        PartitionName("bills", 0): 3,
    }


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"job": "a", "number": 1, "ranges": [1]}'])
def test_a_broken_file_is_named(text: str) -> None:
    with pytest.raises(PipelineError, match=r"plans/3.json"):
        JobPlan.from_json(text, "plans/3.json")
    with pytest.raises(PipelineError, match=r"commits/3.json"):
        JobCommit.from_json(text, "commits/3.json")
