"""Deleted groups leave no objects in memory, whatever their type."""

from collections.abc import Callable

import pytest

from odradek.coordinator.group.deleted_groups import deleted_group, drop_deleted
from odradek.coordinator.group.requests import DeleteGroup
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import DeletableGroupResult
from tests.support.consumer_playbook import Stage
from tests.support.share_group_playbook import ShareStage
from tests.support.streams_playbook import StreamsStage, word_count

COUNT = 20


class Group:
    """The part of a group that `drop_deleted` uses."""

    def __init__(self, *, exists: bool = False, is_droppable: bool = True) -> None:
        self.exists = exists
        self.is_droppable = is_droppable


def consumers(stage: Stage, group: str) -> None:
    stage.send_heartbeat("m", group=group)
    stage.send_heartbeat("m", -1, group=group)


def sharers(stage: Stage, group: str) -> None:
    assert isinstance(stage, ShareStage)
    stage.share("m", group=group)
    stage.keep_states()
    stage.share("m", -1, group=group)


def streamers(stage: Stage, group: str) -> None:
    assert isinstance(stage, StreamsStage)
    stage.send_streams_heartbeat("m", group=group)
    stage.send_streams_heartbeat("m", -1, group=group)


Lived = Callable[[Stage, str], None]
FAMILIES = [(Stage, consumers, "consumers"), (ShareStage, sharers, "shares")]
FAMILIES += [(StreamsStage, streamers, "streams")]


def objects_of(stage: Stage, family: str) -> list[str]:
    """The ids of the groups that have an object."""
    return list(getattr(stage.shard, family)._groups)


def delete(stage: Stage, group: str) -> ErrorCode:
    call = stage.ask(DeleteGroup(group), version=3)
    if isinstance(stage, ShareStage):
        stage.keep_states()
    return ErrorCode(call.response(DeletableGroupResult).error_code)


@pytest.mark.parametrize(("make", "live", "family"), FAMILIES)
def test_created_and_deleted_groups_take_no_memory(
    make: type[Stage], live: Lived, family: str
) -> None:
    stage = make()
    for at in range(COUNT):
        live(stage, f"g{at}")
        assert delete(stage, f"g{at}") == ErrorCode.NONE
    live(stage, "last")
    assert objects_of(stage, family) == ["last"]


@pytest.mark.parametrize(("make", "live", "family"), FAMILIES)
def test_a_failed_append_restores_a_deleted_group(
    make: type[Stage], live: Lived, family: str
) -> None:
    stage = make()
    live(stage, "g")
    live(stage, "other")
    stage.hold_log()
    call = stage.ask(DeleteGroup("g"), version=3)
    stage.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert call.answer is not None
    live(stage, "other")
    assert "g" in getattr(stage.shard, family)
    assert delete(stage, "g") == ErrorCode.NONE
    live(stage, "other")
    assert objects_of(stage, family) == ["other"]


@pytest.mark.parametrize(("make", "live", "family"), FAMILIES)
def test_groups_whose_creation_fails_take_no_memory(
    make: type[Stage], live: Lived, family: str
) -> None:
    stage = make()
    for at in range(COUNT):
        stage.hold_log()
        if isinstance(stage, ShareStage):
            stage.share_call("m", group=f"g{at}", topics=["a"])
        elif isinstance(stage, StreamsStage):
            stage.streams_call("m", group=f"g{at}", plan=word_count(), process="p", timeout_ms=1)
        else:
            stage.beat_call("m", group=f"g{at}", topics=["a"], owned={}, timeout_ms=1)
        stage.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    live(stage, "last")
    assert objects_of(stage, family) == ["last"]


def test_a_deleted_group_is_dropped_when_the_deletion_is_committed() -> None:
    groups = {"g": Group(is_droppable=False)}
    ended: dict[str, None] = {"g": None}
    assert drop_deleted(groups, ended) == []
    groups["g"].is_droppable = True
    assert drop_deleted(groups, ended) == ["g"]
    assert (groups, ended) == ({}, {})


def test_a_group_that_exists_again_is_kept() -> None:
    groups = {"g": Group(exists=True, is_droppable=False)}
    ended: dict[str, None] = {"g": None, "gone": None}
    assert drop_deleted(groups, ended) == []
    assert (list(groups), ended) == (["g"], {})


def test_a_deletion_that_is_not_committed_does_not_delay_others() -> None:
    groups = {
        "stuck": Group(is_droppable=False),
        "stuck too": Group(is_droppable=False),
        "g": Group(),
    }
    ended = dict.fromkeys(groups)
    dropped = [*drop_deleted(groups, ended), *drop_deleted(groups, ended)]
    assert dropped == ["g"]
    assert sorted(ended) == ["stuck", "stuck too"]


def test_only_a_group_that_was_not_deleted_has_an_error_message() -> None:
    assert deleted_group("g", ErrorCode.NONE).error_message is None
    refused = deleted_group("g", ErrorCode.NON_EMPTY_GROUP)
    assert (refused.group_id, refused.error_code) == ("g", ErrorCode.NON_EMPTY_GROUP)
    assert refused.error_message == ErrorCode.NON_EMPTY_GROUP.message
