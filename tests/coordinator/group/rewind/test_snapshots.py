"""Snapshots of a group's offsets: taken, described, dropped, limited."""

import pytest

from odradek.coordinator.group.rewind.records import OffsetMove
from odradek.coordinator.group.rewind.requests import (
    DescribeRewinds,
    DropSnapshot,
    RewindHistory,
    RewindResult,
    TakeSnapshot,
)
from odradek.coordinator.group.rewind.rewind_tables import SNAPSHOT_COUNT_MAX
from odradek.protocol.errors import ErrorCode
from tests.support.consumer_playbook import id_of
from tests.support.rewind_playbook import TOPIC, RewindStage
from tests.support.share_group_playbook import ShareStage

A0 = (TOPIC, 0)


@pytest.fixture
def stage() -> RewindStage:
    stage = RewindStage()
    stage.commit({A0: 7}, metadata="m")
    return stage


def take(stage: RewindStage, name: str = "s") -> RewindResult:
    return stage.ask(TakeSnapshot("g", name)).response(RewindResult)


def drop(stage: RewindStage, name: str = "s") -> RewindResult:
    return stage.ask(DropSnapshot("g", name)).response(RewindResult)


def test_a_snapshot_stays_when_the_offsets_change(stage: RewindStage) -> None:
    assert [(move.offset, move.metadata) for move in take(stage).moves] == [(7, "m")]
    stage.commit({A0: 50})
    stage.reload()
    history = stage.ask(DescribeRewinds("g")).response(RewindHistory)
    assert [move.offset for move in history.snapshots["s"].moves] == [7]


def test_a_dropped_snapshot_is_removed(stage: RewindStage) -> None:
    take(stage)
    assert drop(stage).error_code is ErrorCode.NONE
    assert drop(stage).error_code is ErrorCode.RESOURCE_NOT_FOUND
    assert not stage.ask(DescribeRewinds("g")).response(RewindHistory).snapshots


@pytest.mark.parametrize("name", ["", "a b", "x" * 250, "a/b", "a\n"])
def test_invalid_names_are_refused(stage: RewindStage, name: str) -> None:
    assert take(stage, name).error_code is ErrorCode.INVALID_REQUEST


def test_an_existing_snapshot_is_not_replaced(stage: RewindStage) -> None:
    take(stage)
    assert "Delete it first" in (take(stage).error_message or "")


def test_the_number_of_snapshots_is_limited(stage: RewindStage) -> None:
    for number in range(SNAPSHOT_COUNT_MAX):
        assert take(stage, f"s{number}").error_code is ErrorCode.NONE
    assert take(stage).error_code is ErrorCode.INVALID_REQUEST


def test_a_snapshot_needs_a_group_with_offsets(stage: RewindStage) -> None:
    for request in (TakeSnapshot("h", "s"), DropSnapshot("h", "s")):
        assert stage.ask(request).response(RewindResult).error_code is ErrorCode.GROUP_ID_NOT_FOUND
    empty = RewindStage()
    empty.stable()
    assert "no committed offsets" in (take(empty).error_message or "")


def test_a_snapshot_of_a_share_group_has_its_start_offsets() -> None:
    """The caller has read them from the share coordinator."""
    stage = ShareStage({TOPIC: 2})
    stage.share("m")
    stage.keep_states()
    assert "read nothing yet" in (
        stage.ask(TakeSnapshot("s", "n")).response(RewindResult).error_message or ""
    )
    starts = (OffsetMove(TOPIC, id_of(TOPIC), 1, 5),)
    assert stage.ask(TakeSnapshot("s", "n", starts)).response(RewindResult).moves == starts
    stage.reload()
    history = stage.ask(DescribeRewinds("s")).response(RewindHistory)
    assert history.snapshots["n"].moves == starts


def test_snapshots_of_other_groups_have_their_committed_offsets(stage: RewindStage) -> None:
    starts = (OffsetMove(TOPIC, id_of(TOPIC), 1, 5),)
    taken = stage.ask(TakeSnapshot("g", "s", starts)).response(RewindResult)
    assert [(move.partition, move.offset) for move in taken.moves] == [(0, 7)]
