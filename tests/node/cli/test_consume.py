"""`odradek consume` against a cluster."""

import os
import signal
import subprocess
import sys

import click
import pytest

from odradek.node.cli.consume import ConsumeState
from tests.node.cli.conftest import Run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def filled(kafka: Run, topic: str, keeps_old_records: None) -> str:
    """A topic with 10 records in partition 0 and 2 in partition 1, a second apart from 1000."""
    for number in range(10):
        kafka("produce", topic, f"a{number}", "-p", "0", "--timestamp", str(1000 * (number + 1)))
    kafka("produce", topic, "b0", "b1", "-p", "1", "-k", "key", "-H", "h=1", "--timestamp", "500")
    return topic


def test_consume_stops_at_the_end(kafka: Run, filled: str) -> None:
    values = kafka("consume", filled).stdout.split()
    assert sorted(values) == sorted([*(f"a{n}" for n in range(10)), "b0", "b1"])


def test_an_empty_topic_ends_at_once(kafka: Run, topic: str) -> None:
    ran = kafka("consume", topic)
    assert (ran.exit_code, ran.stdout) == (0, "")


@pytest.mark.parametrize(
    ("position", "first"),
    [("beginning", "a0"), ("7", "a7"), ("-2", "a8"), ("-50", "a0")],
)
def test_consume_starts_at_the_given_position(
    kafka: Run, filled: str, position: str, first: str
) -> None:
    assert kafka("consume", f"{filled}:0", "--from", position).stdout.split()[0] == first


def test_consume_from_the_end_prints_nothing(kafka: Run, filled: str) -> None:
    assert kafka("consume", filled, "--from", "end").stdout == ""


def test_consume_starts_at_a_time(kafka: Run, filled: str) -> None:
    assert kafka("consume", filled, "--since", "8500").stdout.split() == ["a8", "a9"]


def test_consume_stops_after_max_messages(kafka: Run, filled: str) -> None:
    assert kafka("consume", f"{filled}:0", "-n", "3").stdout.split() == ["a0", "a1", "a2"]


def test_columns_precede_the_value(kafka: Run, filled: str) -> None:
    lines = kafka("consume", f"{filled}:1", "--all").stdout.splitlines()
    assert lines[1].split("\t") == [
        f"{filled}-1",
        "1",
        "1970-01-01T00:00:00.500Z",
        "key",
        "h=1",
        "b1",
    ]


def test_a_template_formats_the_line(kafka: Run, filled: str) -> None:
    ran = kafka("consume", f"{filled}:1", "-n", "1", "--format", "{partition}@{offset} {value}")
    assert ran.stdout == "1@0 b0\n"


def test_an_unknown_field_of_a_template_is_wrong_usage(odradek: Run) -> None:
    ran = odradek("consume", "t", "--format", "{ofset}")
    assert ran.exit_code == 2
    assert "unknown field {ofset} (known: {topic} {partition} {offset}" in ran.stderr


def test_json_has_all_fields_of_a_record(kafka: Run, filled: str) -> None:
    record = kafka("consume", f"{filled}:1", "-n", "1", "-o", "json").json_lines()[0]
    assert record == {
        "topic": filled,
        "partition": 1,
        "offset": 0,
        "timestamp": 500,
        "timestamp_type": "create_time",
        "key": "key",
        "value": "b0",
        "headers": [{"key": "h", "value": "1"}],
    }


def test_a_pipe_gets_the_bytes_unchanged(topic: str, bootstrap: str) -> None:
    blob = bytes(range(256))
    base = [sys.executable, "-m", "odradek"]
    environment = {
        **os.environ,
        "ODRADEK_BOOTSTRAP": bootstrap,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run(
        [*base, "produce", topic, "--format", "raw"], input=blob, env=environment, check=True
    )
    read = subprocess.run(
        [*base, "consume", topic], capture_output=True, env=environment, check=True
    )
    assert read.stdout == blob + b"\n"
    formatted = subprocess.run(
        [*base, "consume", topic, "--format", r"{offset} {value}\c"],
        capture_output=True,
        env=environment,
        check=True,
    )
    assert formatted.stdout == b"0 " + blob


def test_a_group_resumes_at_its_committed_offsets(kafka: Run, filled: str, group_name: str) -> None:
    first = kafka("consume", filled, "-g", group_name, "-n", "5").stdout.split()
    rest = kafka("consume", filled, "-g", group_name).stdout.split()
    assert len(first) == 5
    assert sorted(first + rest) == sorted([*(f"a{n}" for n in range(10)), "b0", "b1"])
    assert kafka("consume", filled, "-g", group_name).stdout == ""


def test_follow_prints_new_records_and_ends_on_a_signal(topic: str, bootstrap: str) -> None:
    follower = subprocess.Popen(
        [sys.executable, "-m", "odradek", "consume", topic, "--follow"],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "ODRADEK_BOOTSTRAP": bootstrap,
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    try:
        assert follower.stdout is not None
        for value in ("one", "two"):
            subprocess.run(
                [sys.executable, "-m", "odradek", "produce", topic, value],
                env={
                    **os.environ,
                    "ODRADEK_BOOTSTRAP": bootstrap,
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
                check=True,
            )
            assert follower.stdout.readline() == f"{value}\n"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(10) == 0
    finally:
        follower.kill()
        follower.communicate()


def test_an_unknown_topic_is_an_error(kafka: Run, topic: str) -> None:
    ran = kafka("consume", f"{topic}-not")
    assert ran.exit_code == 1
    assert f"{topic}-not: no such topic; did you mean {topic}?" in ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("t", "--from", "end", "--since", "1h"),
        ("t", "--from", "somewhere"),
        ("t", "-g", "g", "--from", "5"),
        ("t:0", "-g", "g"),
        ("t", "--format", "x", "-o", "json"),
    ],
)
def test_options_that_exclude_each_other_are_a_usage_error(
    odradek: Run, arguments: tuple[str, ...]
) -> None:
    assert odradek("consume", *arguments).exit_code == 2


def test_a_member_commits_only_what_it_printed(kafka: Run, filled: str, group_name: str) -> None:
    kafka("consume", filled, "-g", group_name, "-n", "4")

    def committed() -> int:
        documents = kafka("group", "describe", group_name, "-o", "json").json()
        assert isinstance(documents, list)
        return sum(row["committed"] or 0 for row in documents[0]["offsets"])

    assert wait_until(committed) == 4


def test_a_partition_that_does_not_answer_is_not_waited_for_without_end() -> None:
    state = ConsumeState(limit=None, is_following=False)
    state.assigned |= {("orders", 0), ("orders", 1)}
    state.ended.add(("orders", 0))
    state.check_progress(5)
    state.progress_at -= 6
    with pytest.raises(click.ClickException, match="nothing arrived from orders-1 within 5 s"):
        state.check_progress(5)
    ConsumeState(limit=None, is_following=True, progress_at=0).check_progress(5)
    without = ConsumeState(limit=None, is_following=False, progress_at=-6)
    with pytest.raises(click.ClickException, match="no partition is assigned"):
        without.check_progress(0)
