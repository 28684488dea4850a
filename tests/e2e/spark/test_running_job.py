"""What a job says while it runs, and how signals end it: as `odradek pipe offload --help` says."""

import os
import re
import signal
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from odradek.node.embedded import EmbeddedBroker
from tests.e2e.spark.offload_job import TIMEOUT_S, OffloadJob, environment, job_settings, verify
from tests.support.topic_records import TopicRecords
from tests.support.waiting import wait_until

ENDING = "Ending after the current plan; the same again ends now."


@pytest.fixture
def records(kafka_broker: EmbeddedBroker) -> TopicRecords:
    return TopicRecords({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def job(kafka_broker: EmbeddedBroker, records: TopicRecords, tmp_path: Path) -> OffloadJob:
    """Of a topic with two partitions."""
    topic = f"running-{uuid4().hex[:8]}"
    records.create(topic, 2)
    settings = job_settings(kafka_broker.bootstrap_servers, tmp_path / "lake")
    return OffloadJob({**settings, "name": topic, "topics": topic})


def said(job: OffloadJob, *arguments: str) -> list[str]:
    """The lines of a run to its end."""
    ran = subprocess.run(
        job.command("--once", *arguments),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.slow
def test_each_plan_is_a_line_and_the_metrics_file_has_the_sums(
    job: OffloadJob, records: TopicRecords, tmp_path: Path
) -> None:
    file = tmp_path / "job.prom"
    records.send(job.settings["topics"], [b"v"] * 10)
    arguments = ("--output", "text", "--rows-per-trigger", "6", "--metrics-file", str(file))
    plans = said(job, *arguments)
    line = re.compile(r"plan (\d): (\d+) records, [\d.]+ k?B in [\d.]+ s \(\d+/s\), lag (\d+)")
    found = [line.fullmatch(each) for each in plans]
    assert [each.groups() for each in found if each] == [("1", "6", "4"), ("2", "4", "0")]
    assert len(found) == 2
    label = f'job_name="{job.settings["name"]}"'
    samples = file.read_text().splitlines()
    assert f"odradek_pipe_records_total{{{label}}} 10" in samples
    assert f"odradek_pipe_plans_total{{{label}}} 2" in samples
    assert f"odradek_pipe_dead_letters_total{{{label}}} 0" in samples
    assert f"odradek_pipe_last_plan{{{label}}} 2" in samples
    lag = f'odradek_pipe_lag_records{{{label},topic="{job.settings["topics"]}",partition="0"}} 0'
    assert lag in samples
    assert said(job, *arguments) == ["no new records"]
    assert f"odradek_pipe_records_total{{{label}}} 0" in file.read_text().splitlines()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_in_the_middle_of_a_plan_lets_it_end(
    number: signal.Signals, job: OffloadJob, records: TopicRecords, tmp_path: Path
) -> None:
    """A terminal sends SIGINT to all processes of the group, those of Spark as well."""
    log = tmp_path / "log"
    records.send(job.settings["topics"], [b"first"] * 5)
    with job.running("--every", "100ms", log=log) as process:
        plans = job.table / "_odradek" / "plans"
        commits = job.table / "_odradek" / "commits"
        wait_until(lambda: len([*commits.glob("*.json")]) == 1, timeout_s=120, what="plan 1")
        records.send(job.settings["topics"], [b"second"] * 50_000, partition=1)
        wait_until(lambda: len([*plans.glob("*.json")]) == 2, timeout_s=60, what="plan 2")
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(60) == (130 if number == signal.SIGINT else 0), log.read_text()
    lines = log.read_text().splitlines()
    assert ENDING in lines
    assert "Traceback" not in log.read_text()
    # Plan 2 is told: it was not thrown away.
    assert sum(line.startswith('{"job"') for line in lines) >= 2
    assert job.once().exit_code == 0
    assert sum(each["rows"] for each in verify(job)["partitions"]) == 50_005
