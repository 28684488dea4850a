"""What a job does before and after Spark: identity, starts, groups. With Spark: tests/e2e/spark."""

from pathlib import Path
from threading import Event
from uuid import uuid4

import pyarrow as pa
import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError, TopicRecreated
from odradek.pipeline.group_offsets import committed_offsets
from odradek.pipeline.jobs.job_metrics import TriggerProgress
from odradek.pipeline.jobs.job_options import JobOptions, job_options
from odradek.pipeline.jobs.offload import Offload, table_job
from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.tables.job_plan import JobPlan, PlanResult
from odradek.pipeline.tables.target import TableTarget, open_table
from tests.support.topic_records import TopicRecords

pytestmark = pytest.mark.e2e


@pytest.fixture
def records(kafka_broker: EmbeddedBroker) -> TopicRecords:
    return TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def settings(kafka_broker: EmbeddedBroker, records: TopicRecords, tmp_path: Path) -> dict[str, str]:
    topic = f"orders-{uuid4().hex[:8]}"
    records.create(topic, 2)
    return {
        "name": topic,
        "bootstrap.servers": kafka_broker.bootstrap_servers,
        "topics": topic,
        "table": str(tmp_path / "lake"),
        "start": "latest",
    }


def run(options: JobOptions) -> list[TriggerProgress]:
    told: list[TriggerProgress] = []
    with Offload(options, told.append) as job:
        assert job.run_once(Event()) == len(told)
    return told


def committed(settings: dict[str, str]) -> dict[PartitionName, int]:
    names = [PartitionName(settings["topics"], partition) for partition in range(2)]
    properties = {"bootstrap.servers": settings["bootstrap.servers"], "log_level": "0"}
    return committed_offsets(properties, f"pipe.{settings['name']}", names, timeout_s=30)


def test_the_first_plan_keeps_where_the_table_begins(
    settings: dict[str, str], records: TopicRecords
) -> None:
    topic = settings["topics"]
    records.send(topic, [b"old"] * 5)
    (first,) = run(job_options(settings))
    assert (first.plan, first.records, first.lag) == (1, 0, 0)
    last = open_table("", settings["table"]).last_commit()
    assert last is not None
    assert last.topics[topic].starts == last.topics[topic].ends == {0: 5, 1: 0}
    assert committed(settings) == {PartitionName(topic, 0): 5, PartitionName(topic, 1): 0}
    # Nothing came meanwhile: no plan, and Spark is not started.
    assert run(job_options(settings)) == []


def test_a_set_event_stops_the_job_before_the_next_plan(settings: dict[str, str]) -> None:
    stop = Event()
    stop.set()
    with Offload(job_options(settings), lambda _: None) as job:
        assert job.run_once(stop) == 0
        job.run_every(1000, stop)


def test_the_group_is_repaired_after_a_crash_before_its_commit(
    settings: dict[str, str], records: TopicRecords
) -> None:
    """The table's commit is there, the group's is not."""
    options = job_options(settings)
    with Offload(options, lambda _: None):
        pass
    assert committed(settings) == {}
    table = open_table("parquet", settings["table"])
    table.claim(table_job(options))
    run_without_group(settings, table)
    table.close()
    with Offload(options, lambda _: None):
        assert committed(settings) == {PartitionName(settings["topics"], 0): 0}


def run_without_group(settings: dict[str, str], table: TableTarget) -> None:
    """As far as a process comes that is killed between the two commits."""
    plan = JobPlan(settings["name"], 1, (PartitionRange(settings["topics"], "", 0, 0, 0),))
    table.prepare(plan)
    table.commit(plan, PlanResult((), bad=0, committed_ms=1, schema=pa.schema([])))


def test_a_wrong_topic_leaves_nothing_behind(settings: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match="topic absent does not exist"):
        run(job_options(settings | {"topics": "absent"}))
    assert not Path(settings["table"]).exists()


def test_two_jobs_at_once_are_refused(settings: dict[str, str]) -> None:
    options = job_options(settings)
    with (
        Offload(options, lambda _: None),
        pytest.raises(PipelineError, match="is being written by process"),
    ):
        run(options)
    run(options)


def test_a_table_of_another_job_is_refused(settings: dict[str, str]) -> None:
    run(job_options(settings))
    with pytest.raises(PipelineError, match=r"made with name .* and not other"):
        run(job_options(settings | {"name": "other"}))


def test_a_recreated_topic_stops_the_job(settings: dict[str, str], records: TopicRecords) -> None:
    run(job_options(settings))
    records.recreate(settings["topics"], 2)
    records.send(settings["topics"], [b"new"] * 9)
    with pytest.raises(TopicRecreated, match="belong into a new table"):
        run(job_options(settings))


def test_a_schema_that_does_not_fit_is_said_before_anything_runs(settings: dict[str, str]) -> None:
    json = settings | {"value.format": "json"}
    run(job_options(json | {"value.schema": "id BIGINT"}))
    with pytest.raises(PipelineError, match="column id is int64 in the table and string"):
        run(job_options(json | {"value.schema": "id STRING"}))
    with pytest.raises(PipelineError, match=r"needs value.schema"):
        run(job_options(json | {"name": "n", "table": settings["table"] + "2"}))
