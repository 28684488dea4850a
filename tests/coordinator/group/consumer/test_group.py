"""A consumer group's tables: derived state, and tombstones."""

import pytest

from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.consumer.records import (
    ClassicMemberMetadata,
    ConsumerCurrentAssignment,
    ConsumerCurrentRecord,
    ConsumerEpochRecord,
    ConsumerGroupMember,
    ConsumerMemberRecord,
    ConsumerRegexRecord,
    ConsumerTargetEpochRecord,
    ConsumerTargetRecord,
    ResolvedRegex,
)
from odradek.coordinator.group.modern.group import ModernGroupState
from odradek.coordinator.group.modern.records import (
    GroupEpoch,
    MemberState,
    ModernRecord,
    TargetEpoch,
)
from odradek.coordinator.timeline import Timeline

T = b"t" * 16


def group_of(*records: ModernRecord) -> ConsumerGroup:
    group = ConsumerGroup("g", Timeline())
    for record in records:
        group.replay(record)
    return group


def member(name: str, **given: object) -> ConsumerMemberRecord:
    return ConsumerMemberRecord("g", name, ConsumerGroupMember(**given))  # type: ignore[arg-type]  # as it is


def owning(
    name: str, epoch: int, *indexes: int, pending: int | None = None
) -> ConsumerCurrentRecord:
    state = MemberState.STABLE if pending is None else MemberState.UNREVOKED
    left = {} if pending is None else {T: {pending: epoch}}
    assigned = {T: dict.fromkeys(indexes, epoch)}
    return ConsumerCurrentRecord(
        "g", name, ConsumerCurrentAssignment(epoch, epoch, state, assigned, left)
    )


def test_a_group_exists_as_long_as_its_epoch_is_stored() -> None:
    group = group_of(member("m"))
    assert not group.exists
    group.replay(ConsumerEpochRecord("g", GroupEpoch(3, 9)))
    assert (group.exists, group.epoch, group.metadata_hash) == (True, 3, 9)
    group.replay(ConsumerEpochRecord("g", None))
    assert not group.exists
    assert not group.is_droppable
    group.replay(ConsumerMemberRecord("g", "m", None))
    assert group.is_droppable


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ([], ModernGroupState.EMPTY),
        ([member("m")], ModernGroupState.ASSIGNING),
        (
            [member("m"), ConsumerTargetEpochRecord("g", TargetEpoch(2)), owning("m", 1)],
            ModernGroupState.RECONCILING,
        ),
        (
            [
                member("m"),
                ConsumerTargetEpochRecord("g", TargetEpoch(2)),
                owning("m", 2, pending=1),
            ],
            ModernGroupState.RECONCILING,
        ),
        (
            [
                member("m"),
                member("n"),
                ConsumerTargetEpochRecord("g", TargetEpoch(2)),
                owning("m", 2),
            ],
            ModernGroupState.RECONCILING,
        ),
        (
            [member("m"), ConsumerTargetEpochRecord("g", TargetEpoch(2)), owning("m", 2)],
            ModernGroupState.STABLE,
        ),
    ],
)
def test_the_state_follows_from_epochs_and_members(
    records: list[ModernRecord], state: ModernGroupState
) -> None:
    assert group_of(ConsumerEpochRecord("g", GroupEpoch(2)), *records).state is state


def test_a_partition_has_its_owner_until_it_is_revoked() -> None:
    group = group_of(owning("m", 1, 0, pending=1))
    assert group.owner(T, 0) == group.owner(T, 1) == "m"
    assert not group.is_free_for("n", T, 1)
    assert group.is_free_for("m", T, 1)
    group.replay(owning("m", 2, 0))
    assert group.owner(T, 1) is None


def test_a_compacted_log_may_have_the_record_of_the_new_owner_first() -> None:
    group = group_of(owning("m", 1, 0), owning("n", 2, 0), owning("m", 2))
    assert group.owner(T, 0) == "n"


def test_a_group_knows_whether_a_member_waits_for_partitions() -> None:
    group = group_of(ConsumerTargetRecord("g", "n", {T: frozenset({0})}), owning("m", 1, 0))
    assert group.is_waiting_for_partitions("n")
    group.replay(ConsumerCurrentRecord("g", "m", None))
    assert not group.is_waiting_for_partitions("n")


def test_an_instance_id_belongs_to_the_newest_member_with_it() -> None:
    group = group_of(member("m", instance_id="i"), member("n", instance_id="i"))
    group.replay(ConsumerMemberRecord("g", "m", None))
    assert group.static_member_id("i") == "n"
    group.replay(ConsumerMemberRecord("g", "n", None))
    assert group.static_member_id("i") is None


def test_topic_names_has_the_topics_of_all_subscriptions() -> None:
    group = group_of(
        member("m", topic_names=("a", "b")),
        member("n", topic_names=("b",), topic_regex="x.*"),
        ConsumerRegexRecord("g", "x.*", ResolvedRegex(("xa",))),
        ConsumerRegexRecord("g", "y.*", ResolvedRegex(("ya",))),
    )
    assert group.topic_names() == {"a", "b", "xa"}
    group.replay(ConsumerMemberRecord("g", "m", None))
    assert group.topic_names() == {"b", "xa"}
    group.replay(member("n", topic_names=("c",)))
    assert group.topic_names() == {"c"}


def test_classic_members_are_counted() -> None:
    classic = ClassicMemberMetadata(10_000, ())
    group = group_of(member("m", classic=classic), member("n", classic=classic), member("o"))
    assert group.classic_count == 2
    group.replay(member("m"))
    group.replay(ConsumerMemberRecord("g", "n", None))
    assert group.classic_count == 0
