"""Epochs and target assignments: when they are made, and which records are written."""

import random

import pytest

from odradek.cluster.metadata.group_settings import ConsumerGroupSettings
from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.consumer.records import (
    ConsumerGroupMember,
    ConsumerMemberRecord,
    ConsumerRegexRecord,
    ConsumerTargetEpochRecord,
    ConsumerTargetRecord,
    ResolvedRegex,
)
from odradek.coordinator.group.consumer.target_assignment import (
    ConsumerTargetAssignmentBuilder,
    choose_assignor,
)
from odradek.coordinator.group.records import decode
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.timeline import Timeline
from tests.support.consumer_playbook import Consumer, Stage, settle

SLOW = GroupSettings(consumer=ConsumerGroupSettings(assignment_interval_ms=1_000))


def written(stage: Stage, since: int) -> list[object]:
    return [decode(key, value) for key, value in stage.log[since:]]


def test_the_first_member_is_assigned_at_once_and_later_ones_together() -> None:
    stage = Stage({"a": 4}, SLOW)
    members = [Consumer(stage, name) for name in "mno"]
    for member in members:
        member.send_heartbeat()
    assert (stage.consumers().epoch, stage.consumers().target_epoch) == (4, 2)
    stage.tick(999)
    assert stage.consumers().target_epoch == 2
    stage.tick(1)
    assert (stage.consumers().epoch, stage.consumers().target_epoch) == (4, 4)
    settle(*members)
    assert sorted(len(member.partitions) for member in members) == [1, 1, 2]


def test_a_group_may_have_an_assignment_interval_of_its_own() -> None:
    own = {"g": ConsumerGroupSettings(assignment_interval_ms=300)}
    stage = Stage({"a": 4}, GroupSettings(consumer_overrides=own))
    for name in "mn":
        Consumer(stage, name).send_heartbeat()
    stage.tick(299)
    assert stage.consumers().target_epoch == 2
    stage.tick(1)
    assert stage.consumers().target_epoch == 3


def test_a_heartbeat_after_the_interval_makes_the_assignment() -> None:
    stage = Stage({"a": 4}, SLOW)
    stage.send_heartbeat("m")
    stage.now_ms += 1_000
    assert stage.send_heartbeat("n").member_epoch == 3


def test_only_targets_that_differ_are_written_and_the_epoch_last() -> None:
    stage = Stage({"a": 6})
    members = [Consumer(stage, name) for name in "mno"]
    settle(*members)
    since = len(stage.log)
    stage.topics({"a": 7})
    records = [
        r
        for r in written(stage, since)
        if isinstance(r, ConsumerTargetRecord | ConsumerTargetEpochRecord)
    ]
    assert [type(record) for record in records] == [ConsumerTargetRecord, ConsumerTargetEpochRecord]


def test_racks_of_replicas_change_the_hash_if_a_member_has_a_rack() -> None:
    stage = Stage({"a": 3}, SLOW, racks=("r0", "r1", "r2"))
    members = [Consumer(stage, f"m{at}", rack=rack) for at, rack in enumerate(("r2", "r0", "r1"))]
    for member in members:
        member.send_heartbeat()
    stage.tick(1_000)
    settle(*members)
    assert [member.partitions for member in members] == [{("a", 2)}, {("a", 0)}, {("a", 1)}]


def test_the_default_is_the_first_assignor_and_votes_for_others_do_not_count() -> None:
    settings = GroupSettings(consumer=ConsumerGroupSettings(assignors=("range", "uniform")))
    member = ConsumerGroupMember(server_assignor="gone")
    assert choose_assignor([member], settings) == "range"
    assert choose_assignor([], settings) == "range"
    votes = [member, ConsumerGroupMember(server_assignor="uniform")]
    assert choose_assignor(votes, settings) == "uniform"


def test_a_clock_that_was_set_back_does_not_delay_assignments() -> None:
    stage = Stage({"a": 2}, SLOW)
    stage.send_heartbeat("m")
    stage.now_ms -= 500_000
    assert stage.send_heartbeat("n").member_epoch == 3


EXPRESSIONS = {"x.*": ("x1", "x2"), "y.*": ("y1", "a")}


def any_member(chance: random.Random) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        topic_names=tuple(sorted(chance.sample("abc", chance.randrange(3)))),
        topic_regex=chance.choice((None, None, *EXPRESSIONS)),
        rack_id=chance.choice((None, None, None, "r")),
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_builder_counts_subscriptions_as_a_scan_of_all_members_does(seed: int) -> None:
    chance = random.Random(seed)
    group = ConsumerGroup("g", Timeline())
    for regex, names in EXPRESSIONS.items():
        group.replay(ConsumerRegexRecord("g", regex, ResolvedRegex(names)))
    known: dict[str, ConsumerGroupMember] = {}
    for _ in range(40):
        builder, twin = ConsumerTargetAssignmentBuilder(group), dict(known)
        for _ in range(chance.randrange(4)):
            member_id, member = chance.choice("mnop"), any_member(chance)
            match chance.randrange(3):
                case 0:
                    builder.put(member_id, member)
                    twin[member_id] = member
                case 1:
                    builder.remove(member_id)
                    twin.pop(member_id, None)
                case _:
                    builder.put("q", member, "m")
                    twin.pop("m", None)
                    twin["q"] = member
        assert builder.members() == twin, seed
        used = {member.topic_regex for member in twin.values() if member.topic_regex}
        named = {name for member in twin.values() for name in member.topic_names}
        resolved = {name for regex in used for name in EXPRESSIONS[regex]}
        assert builder.topic_names() == named | resolved, seed
        assert {regex for regex in EXPRESSIONS if builder.is_regex_used(regex)} == used, seed
        assert builder.has_racks == any(member.rack_id for member in twin.values()), seed
        for member_id in known.keys() | twin.keys():
            group.replay(ConsumerMemberRecord("g", member_id, twin.get(member_id)))
        known = twin
