"""What is the same for the heartbeats of members of all newer types of groups."""

import pytest

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.group.modern.heartbeats import (
    check_texts,
    heartbeat_interval_ms,
    is_blank_text,
    resolve_member,
)
from odradek.coordinator.group.modern.records import GroupEpoch
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.records import (
    ShareCurrentAssignment,
    ShareCurrentRecord,
    ShareEpochRecord,
    ShareGroupMember,
    ShareMemberRecord,
)
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.record_serde import TEXT_LENGTH_MAX
from odradek.coordinator.timeline import Timeline
from odradek.protocol.errors import ApiError, ErrorCode

STEP = GroupStep(0, GroupSettings(share=ShareGroupSettings(max_size=1)))


def group() -> ShareGroup:
    made = ShareGroup("g", Timeline())
    made.replay(ShareEpochRecord("g", GroupEpoch(5)))
    made.replay(ShareMemberRecord("g", "m", ShareGroupMember()))
    made.replay(ShareCurrentRecord("g", "m", ShareCurrentAssignment(5, 4)))
    return made


def test_a_text_is_blank_if_it_is_there_and_says_nothing() -> None:
    assert [is_blank_text(text) for text in (None, "", " \t", "a")] == [False, True, True, False]


def test_texts_are_stored_up_to_a_length() -> None:
    assert check_texts("g", "x" * TEXT_LENGTH_MAX, None) is None
    assert "cannot be stored" in (check_texts("g", "x" * (TEXT_LENGTH_MAX + 1)) or "")


@pytest.mark.parametrize(
    ("member_id", "epoch", "code"),
    [
        ("n", 0, ErrorCode.GROUP_MAX_SIZE_REACHED),
        ("n", 3, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m", 3, ErrorCode.FENCED_MEMBER_EPOCH),
        ("m", 6, ErrorCode.FENCED_MEMBER_EPOCH),
    ],
)
def test_a_heartbeat_that_is_nobodys_is_refused(
    member_id: str, epoch: int, code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as refused:
        resolve_member(group(), member_id, epoch, None, STEP, is_retry=lambda _: True)
    assert refused.value.code == code


def test_the_previous_epoch_counts_if_the_heartbeat_may_be_a_retry() -> None:
    resolved = resolve_member(group(), "m", 4, None, STEP, is_retry=lambda _: True)
    assert resolved.current == ShareCurrentAssignment(5, 4)
    with pytest.raises(ApiError):
        resolve_member(group(), "m", 4, None, STEP, is_retry=lambda _: False)


def test_members_come_as_often_as_all_of_them_may() -> None:
    calm = GroupStep(0, GroupSettings(), member_count_total=600)
    assert heartbeat_interval_ms(group(), calm, is_busy=False) == 3_000
    assert heartbeat_interval_ms(group(), calm, is_busy=True) == 600
