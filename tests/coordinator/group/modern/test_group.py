"""The tables of members that all newer types of groups have."""

from typing import Any

import pytest

from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.consumer.records import (
    ConsumerGroupMember,
    ConsumerMemberRecord,
    ConsumerTargetRecord,
)
from odradek.coordinator.group.modern.group import ModernGroup
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.streams.group import StreamsGroup
from odradek.coordinator.timeline import Timeline


@pytest.mark.parametrize("kind", [ConsumerGroup, ShareGroup, StreamsGroup])
def test_a_group_without_records_has_no_members(
    kind: type[ModernGroup[Any, Any, Any, Any]],
) -> None:
    group = kind("g", Timeline())
    assert group.group_id == "g"
    assert group.is_empty
    assert (group.member_count, list(group.members()), group.member("m")) == (0, [], None)
    assert not group.has_target("m")


def test_members_exist_until_their_records_are_reverted() -> None:
    timeline = Timeline()
    group = ConsumerGroup("g", timeline)
    member = ConsumerGroupMember()
    timeline.advance()
    group.replay(ConsumerMemberRecord("g", "m", member))
    group.replay(ConsumerTargetRecord("g", "m", {}))
    assert (group.member_count, list(group.members())) == (1, [("m", member)])
    assert (group.is_empty, group.member("m"), group.has_target("m")) == (False, member, True)
    timeline.revert()
    assert (group.is_empty, group.member("m"), group.has_target("m")) == (True, None, False)
