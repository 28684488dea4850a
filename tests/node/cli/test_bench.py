"""`odradek bench` against a cluster: its counts, not its speed."""

import pytest

from tests.node.cli.conftest import Run

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("test", "has_latency"), [("produce", True), ("consume", False), ("end-to-end", True)]
)
def test_every_record_is_counted(kafka: Run, test: str, has_latency: bool) -> None:
    ran = kafka("bench", test, "-n", "300", "-s", "100", "-p", "2", "-o", "json")
    rows = ran.json()
    assert isinstance(rows, list)
    (row,) = rows
    assert (row["test"], row["records"]) == (test, 300)
    assert row["records_per_second"] > 0
    assert (row["p50_ms"] is not None) is has_latency
    if has_latency:
        assert row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]


def test_the_new_topic_of_a_benchmark_is_deleted(kafka: Run) -> None:
    kafka("bench", "produce", "-n", "10")
    assert kafka("topic", "list", "odradek-bench-*", "-o", "json").json() == []


def test_an_empty_topic_cannot_be_consumed(kafka: Run, topic: str) -> None:
    ran = kafka("bench", "consume", "--topic", topic)
    assert ran.exit_code == 1
    assert "is empty" in ran.stderr
