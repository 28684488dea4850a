"""What the shard may ask of every family of groups."""

from odradek.coordinator.group.modern.group_type import GroupType
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.shard import GroupShard


def group_types() -> tuple[GroupType, ...]:
    return GroupShard(GroupSettings()).group_types


def test_no_two_families_claim_the_same_records_timers_or_requests() -> None:
    for claims in (
        [kind for family in group_types() for kind in family.record_types],
        [kind for family in group_types() for kind in family.timer_kinds],
        [kind for family in group_types() for kind in family.handlers],
        [family.group_type for family in group_types()],
    ):
        assert len(claims) == len(set(claims))


def test_no_family_has_the_timers_of_classic_groups() -> None:
    for family in group_types():
        assert family.timer_kinds.isdisjoint({"session", "join", "sync", "store", "expiry"})
