"""What is refused before anything is begun, and how it is said."""

import pytest

from coordinator.group.requests import RewindGroup, Rewound
from coordinator.group.rewinds import MOVE_COUNT_MAX
from protocol.errors import ErrorCode
from protocol.types import ZERO_UUID
from tests.support.rewind_playbook import TOPIC, RewindStage

A0 = (TOPIC, 0)


@pytest.fixture
def stage() -> RewindStage:
    stage = RewindStage()
    stage.commit({A0: 7})
    return stage


def test_nothing_is_no_rewind(stage: RewindStage) -> None:
    assert stage.rewind({}).error_code is ErrorCode.INVALID_REQUEST


def test_too_many_partitions_are_counted_out(stage: RewindStage) -> None:
    refused = stage.rewind({(TOPIC, index): 0 for index in range(MOVE_COUNT_MAX + 1)})
    assert refused.error_code is ErrorCode.INVALID_REQUEST
    assert "2001 partitions at once; at most 2000" in (refused.error_message or "")


def test_a_partition_has_one_position(stage: RewindStage) -> None:
    (call,) = (stage.rewind_call({A0: 3}, dry_run=True),)
    assert call.response(Rewound).error_code is ErrorCode.NONE
    request = RewindGroup(group_id="g", rewind_id=ZERO_UUID, positions=())
    assert stage.ask(request).response(Rewound).error_code is ErrorCode.INVALID_REQUEST


def test_a_plan_says_from_where_to_where(stage: RewindStage) -> None:
    plan = stage.rewind({A0: 3, (TOPIC, 1): 4}, dry_run=True)
    assert [(move.previous, move.offset) for move in plan.moves] == [(7, 3), (-1, 4)]
