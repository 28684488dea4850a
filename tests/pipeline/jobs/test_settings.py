"""Settings from YAML and the command line: the same names, and errors that name the place."""

from pathlib import Path

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.settings import (
    check_choice,
    check_count,
    check_names,
    parse_properties,
    read_settings,
    with_prefix,
)


def test_nested_names_and_names_with_dots_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: archive\n"
        "topics: [orders, bills]\n"
        "start: 2026-11-23T12:00:00Z\n"
        "kafka:\n  sasl.mechanism: PLAIN\n  enable: true\n"
        "kafka.client.id: me\n"
        "rows.per.trigger: 10\n"
    )
    found = read_settings(file, {"rows.per.trigger": "20", "table": None})
    assert found == {
        "name": "archive",
        "topics": "orders,bills",
        "start": "2026-11-23T12:00:00+00:00",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.enable": "true",
        "kafka.client.id": "me",
        "rows.per.trigger": "20",
    }
    assert with_prefix(found, "kafka.") == {
        "sasl.mechanism": "PLAIN",
        "enable": "true",
        "client.id": "me",
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "is no YAML"),
        ("- a", "has no settings"),
        ("", "has no settings"),
        ("kafka:\n  name:\n", "kafka.name has no value"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(PipelineError, match=complaint) as raised:
        read_settings(file, {})
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"absent.yaml: No such file"):
        read_settings(tmp_path / "absent.yaml", {})


def test_properties_are_names_and_values() -> None:
    assert parse_properties(["kafka.a=b=c", "spark.x="]) == {"kafka.a": "b=c", "spark.x": ""}
    with pytest.raises(PipelineError, match="kafka is no NAME=VALUE"):
        parse_properties(["kafka"])


def test_a_slip_in_a_name_gets_the_nearest_name() -> None:
    check_names(["topics", "kafka.anything"], ["topics", "table"], ("kafka.",))
    with pytest.raises(PipelineError, match=r"topic is no setting .* did you mean topics\?"):
        check_names(["topic"], ["topics", "table"], ("kafka.",))
    with pytest.raises(PipelineError, match="take one of table, topics"):
        check_names(["zzz"], ["topics", "table"], ())


def test_values_are_checked() -> None:
    assert check_choice("format", "delta", ("delta", "parquet")) == "delta"
    with pytest.raises(PipelineError, match="format is 'orc': take one of delta, parquet"):
        check_choice("format", "orc", ("delta", "parquet"))


@pytest.mark.parametrize(("text", "count"), [("7", 7), ("1_000", 1000), ("5M", 5_000_000)])
def test_counts_may_be_written_short(text: str, count: int) -> None:
    assert check_count("rows", text) == count


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "k", "many"])
def test_a_count_is_a_whole_number(text: str) -> None:
    with pytest.raises(PipelineError, match=r"rows is .*: write a whole number from 1"):
        check_count("rows", text)
