"""`odradek group rewind|undo|snapshot` against a node."""

import json
import os

import click
import pytest

from odradek.node.cli.rewind import AT_OFFSET, AT_TIME, iso_or_short_duration, position
from tests.node.cli.conftest import Run

pytestmark = pytest.mark.skipif(
    "TEST_BOOTSTRAP" in os.environ, reason="only Odradek's brokers rewind"
)
needs_node = pytest.mark.e2e


@pytest.fixture
def group(kafka: Run, topic: str, keeps_old_records: None, group_name: str) -> str:
    """A group at the end of partition 0, which has five records, and without members."""
    for number in range(5):
        kafka("produce", topic, f"v{number}", "-p", "0", "--timestamp", str(1000 * (number + 1)))
    moved = kafka("group", "reset-offsets", group_name, "-t", f"{topic}:0", "--to", "latest")
    assert moved.exit_code == 0, moved.stderr
    return group_name


def moved(kafka: Run, *arguments: str) -> list[tuple[int, int]]:
    """Previous and actual offset of each partition."""
    rows = kafka("group", *arguments, "-o", "json").json()
    assert isinstance(rows, list)
    return [(row["previous_offset"], row["actual_offset"]) for row in rows]


@needs_node
@pytest.mark.parametrize(
    ("where", "offset"),
    [
        (("--to", "earliest"), 0),
        (("--to", "latest"), 5),
        (("--to", "3"), 3),
        (("--to", "99"), 5),
        (("--by", "-2"), 3),
        (("--to-datetime", "2500"), 2),
        (("--to-datetime", "1969-12-31T23:59:59.999Z"), 0),
        (("--by-duration", "PT1H"), 5),
    ],
)
def test_a_group_is_rewound_to_the_given_offsets(
    kafka: Run, topic: str, group: str, where: tuple[str, ...], offset: int
) -> None:
    assert moved(kafka, "rewind", group, "-t", f"{topic}:0", *where) == [(5, offset)]


@needs_node
def test_rewinds_have_a_dry_run_an_undo_and_a_history(kafka: Run, topic: str, group: str) -> None:
    rewind = ("rewind", group, "-t", f"{topic}:0", "--to", "1")
    assert moved(kafka, *rewind, "--dry-run") == [(5, 1)]
    taken = kafka("group", "snapshot", "create", group, "end", "-o", "json").json()
    assert taken == {"group": group, "snapshot": "end", "offsets": 1}
    assert moved(kafka, *rewind) == [(5, 1)]
    assert moved(kafka, "rewind", group, "--to-snapshot", "end") == [(1, 5)]
    listed = kafka("group", "snapshot", "list", group, "-o", "json").json()
    assert isinstance(listed, list)
    assert [(row["kind"], row["name"]) for row in listed] == [
        ("snapshot", "end"),
        ("undo", "2"),
        ("undo", "1"),
    ]
    shown = kafka("group", "snapshot", "list", group, "--offsets", "-o", "json").json()
    assert isinstance(shown, list)
    assert [row["offset"] for row in shown] == [5, 1, 5]
    assert moved(kafka, "undo", group, "--dry-run") == [(5, 1)]
    assert moved(kafka, "undo", group) == [(5, 1)]
    assert kafka("group", "snapshot", "delete", group, "end").exit_code == 0
    gone = kafka("group", "rewind", group, "--to-snapshot", "end")
    assert (gone.exit_code, gone.stdout) == (1, "")
    assert "has no snapshot end" in gone.stderr


@needs_node
def test_a_refused_rewind_has_its_reason(kafka: Run, topic: str, group_name: str) -> None:
    refused = kafka("group", "rewind", group_name, "-t", topic, "--to", "0")
    assert refused.exit_code == 1
    assert f"{group_name}: no such group" in refused.stderr
    assert kafka("group", "undo", group_name).exit_code == 1
    assert kafka("group", "snapshot", "list", group_name).exit_code == 1


@needs_node
def test_a_group_may_be_rewound_by_commits(kafka: Run, group: str) -> None:
    changed = kafka("config", "set", "group", group, "group.rewind.by.commit.enable=true")
    assert changed.exit_code == 0, changed.stderr
    refused = kafka("config", "set", "group", group, "group.rewind.by.commit.enable=maybe")
    assert refused.exit_code == 1
    shown = kafka("config", "describe", "group", group, "-o", "json")
    assert "group.rewind.by.commit.enable" in json.dumps(shown.json())


@pytest.mark.parametrize(
    "arguments",
    [
        ("rewind", "g", "-t", "t"),
        ("rewind", "g", "-t", "t", "--to", "1", "--by", "2"),
        ("rewind", "g", "--to", "1"),
        ("rewind", "g", "-t", "t", "--to", "soon"),
        ("rewind", "g", "-t", "t", "--by-duration", "long"),
        ("rewind", "g", "-t", "t", "--to", str(2**63)),
        ("rewind", "g", "-t", "t", "--by", str(2**63)),
        ("rewind", "g", "-t", "t:-1", "--to", "1"),
    ],
)
def test_wrong_usage_is_an_error_before_any_request(
    odradek: Run, arguments: tuple[str, ...]
) -> None:
    assert odradek("group", *arguments).exit_code == 2


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("30m", 1_800_000),
        ("2h", 7_200_000),
        ("PT30M", 1_800_000),
        ("P1DT12H", 129_600_000),
        ("P1W", 604_800_000),
        ("PT1.5S", 1_500),
    ],
)
def test_durations_are_short_or_iso(text: str, duration_ms: int) -> None:
    assert iso_or_short_duration(text) == duration_ms


@pytest.mark.parametrize("text", ["P", "PT", "P1M", "", "-PT1H"])
def test_an_invalid_duration_is_a_usage_error(text: str) -> None:
    with pytest.raises(click.BadParameter):
        iso_or_short_duration(text)


def test_a_position_is_an_end_or_an_offset() -> None:
    assert position("earliest") == (AT_TIME, -2)
    assert position("latest") == (AT_TIME, -1)
    assert position("7") == (AT_OFFSET, 7)
    with pytest.raises(click.BadParameter):
        position("-7")
