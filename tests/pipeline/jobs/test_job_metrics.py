"""Progress as lines, as a file and as a page that Prometheus' own parser reads."""

import json
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.job_metrics import JobMetrics, MetricsPage, TriggerProgress
from odradek.pipeline.kafka_types import PartitionName

LAGS = {PartitionName("orders", 0): 7, PartitionName("orders", 1): 0}
FIRST = TriggerProgress("archive", 4, 1500, 3, 1_480_000, 1.5, 1_795_478_399_500, LAGS)


def samples(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("partition", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_plan_is_a_line_for_people_or_for_programs() -> None:
    assert FIRST.to_text() == "plan 4: 1500 records, 3 bad, 1.5 MB in 1.5 s (1000/s), lag 7"
    assert json.loads(FIRST.to_json()) == {
        "job": "archive",
        "plan": 4,
        "records": 1500,
        "bad": 3,
        "bytes": 1_480_000,
        "seconds": 1.5,
        "lag": 7,
        "committed_ms": 1_795_478_399_500,
    }
    empty = TriggerProgress("archive", 1, 0, 0, 0, 0.0, 1, {})
    assert empty.to_text() == "plan 1: 0 records, 0 B in 0.0 s (0/s), lag 0"


def test_counters_add_up_and_gauges_are_the_newest() -> None:
    metrics = JobMetrics("archive")
    assert samples(metrics.text())["odradek_pipe_plans_total", ""] == 0
    metrics.add(FIRST)
    metrics.add(FIRST)
    metrics.set_lags({PartitionName("orders", 0): 9})
    found = samples(metrics.text())
    assert found["odradek_pipe_plans_total", ""] == 2
    assert found["odradek_pipe_records_total", ""] == 3000
    assert found["odradek_pipe_dead_letters_total", ""] == 6
    assert found["odradek_pipe_bytes_total", ""] == 2_960_000
    assert found["odradek_pipe_plan_seconds_total", ""] == 3.0
    assert found["odradek_pipe_last_plan", ""] == 4
    assert found["odradek_pipe_last_commit_timestamp_seconds", ""] == 1_795_478_399.5
    assert found["odradek_pipe_lag_records", "0"] == 9
    assert ("odradek_pipe_lag_records", "1") not in found


def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    metrics = JobMetrics("archive")
    metrics.write_file(tmp_path / "job.prom")
    metrics.add(FIRST)
    metrics.write_file(tmp_path / "job.prom")
    assert (tmp_path / "job.prom").read_text() == metrics.text()
    assert [path.name for path in tmp_path.iterdir()] == ["job.prom"]
    with pytest.raises(PipelineError, match=r"metrics file .*job.prom: No such file"):
        metrics.write_file(tmp_path / "absent" / "job.prom")


def test_the_page_has_what_is_counted_now() -> None:
    metrics = JobMetrics("archive")
    page = MetricsPage("127.0.0.1:0", metrics)
    try:
        metrics.add(FIRST)
        with urlopen(f"http://{page.address}/metrics") as answer:
            assert answer.read().decode() == metrics.text()
        with pytest.raises(HTTPError, match="404") as raised:
            urlopen(f"http://{page.address}/")
        raised.value.close()
        with pytest.raises(PipelineError, match=r"metrics address .*: Address already in use"):
            MetricsPage(page.address, metrics)
    finally:
        page.close()


@pytest.mark.parametrize("listen", ["9404", "host:", "host:http"])
def test_an_address_has_a_host_and_a_port(listen: str) -> None:
    with pytest.raises(PipelineError, match="write HOST:PORT"):
        MetricsPage(listen, JobMetrics("archive"))
