"""The part of heartbeats that all newer types of groups have in common."""

import pytest

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.consumer.records import (
    ConsumerCurrentAssignment,
    ConsumerCurrentRecord,
    ConsumerGroupMember,
    ConsumerMemberRecord,
)
from odradek.coordinator.group.modern.heartbeats import (
    check_instance_id,
    check_member,
    check_texts,
    heartbeat_interval_ms,
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


def static_group() -> ConsumerGroup:
    """A group in which "shelf" is the instance id of m."""
    made = ConsumerGroup("g", Timeline())
    made.replay(ConsumerMemberRecord("g", "m", ConsumerGroupMember(instance_id="shelf")))
    made.replay(ConsumerCurrentRecord("g", "m", ConsumerCurrentAssignment(5, 4)))
    return made


@pytest.mark.parametrize("instance_id", [None, "shelf"])
def test_a_member_may_have_an_instance_id_of_its_own_or_none(instance_id: str | None) -> None:
    check_member(static_group(), "m", instance_id)


@pytest.mark.parametrize(
    ("member_id", "instance_id", "code"),
    [
        ("m", "table", ErrorCode.UNKNOWN_MEMBER_ID),
        ("n", "shelf", ErrorCode.FENCED_INSTANCE_ID),
    ],
    ids=["unknown", "of another member"],
)
def test_an_instance_id_of_another_member_is_refused(
    member_id: str, instance_id: str, code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as refused:
        check_instance_id(static_group(), member_id, instance_id)
    assert refused.value.code == code


def test_the_error_of_an_unknown_member_names_the_group() -> None:
    with pytest.raises(ApiError) as refused:
        check_member(static_group(), "n", None)
    assert refused.value.code == ErrorCode.UNKNOWN_MEMBER_ID
    assert refused.value.message == "Member n is not a member of group g."


@pytest.mark.parametrize(("epoch", "how"), [(7, "greater"), (3, "smaller")])
def test_the_error_of_another_member_epoch_names_both_epochs(epoch: int, how: str) -> None:
    with pytest.raises(ApiError) as refused:
        resolve_member(static_group(), "m", epoch, None, STEP, is_retry=lambda _: True)
    assert refused.value.code == ErrorCode.FENCED_MEMBER_EPOCH
    assert refused.value.message == (
        f"The consumer group member has a {how} member epoch ({epoch}) than the one known by the"
        " group coordinator (5). The member must abandon all its partitions and rejoin."
    )


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
def test_a_heartbeat_of_an_unknown_member_or_epoch_is_refused(
    member_id: str, epoch: int, code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as refused:
        resolve_member(group(), member_id, epoch, None, STEP, is_retry=lambda _: True)
    assert refused.value.code == code


def test_the_previous_epoch_is_valid_if_the_heartbeat_may_be_a_retry() -> None:
    resolved = resolve_member(group(), "m", 4, None, STEP, is_retry=lambda _: True)
    assert resolved.current == ShareCurrentAssignment(5, 4)
    with pytest.raises(ApiError):
        resolve_member(group(), "m", 4, None, STEP, is_retry=lambda _: False)


def test_the_heartbeat_interval_depends_on_the_number_of_members() -> None:
    calm = GroupStep(0, GroupSettings(), member_count_total=600)
    assert heartbeat_interval_ms(group(), calm, is_busy=False) == 3_000
    assert heartbeat_interval_ms(group(), calm, is_busy=True) == 600
