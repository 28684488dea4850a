"""A shard of groups: administration, loading of any prefix of its log, random walks."""

import random

import pytest

from odradek.coordinator.group.classic.group import ClassicGroup, GroupState
from odradek.coordinator.group.classic.records import GroupMetadataRecord
from odradek.coordinator.group.requests import DeleteGroup
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.loader import CoordinatorLoader
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import DeletableGroupResult, MemberIdentity
from tests.support.group_playbook import NO_DELAY, GroupCall, Playbook

# -- DescribeGroups, ListGroups, DeleteGroups -----------------------------------------------------


@pytest.mark.parametrize(
    ("version", "expected"), [(5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_unknown_groups_are_dead_and_from_version_6_on_an_error(
    version: int, expected: ErrorCode
) -> None:
    described = Playbook().describe("no", version=version)
    assert described.group_state == "Dead"
    assert described.error_code == expected
    assert (described.error_message is not None) == (version >= 6)


def test_a_stable_group_is_described_with_protocol_metadata_and_assignments() -> None:
    play = Playbook()
    first, _ = play.stable(2, instances=["a"])
    described = play.describe()
    assert described.protocol_type == "consumer"
    assert described.protocol_data == "range"
    assert [member.member_assignment for member in described.members] == [b"0", b"1"]
    member = described.members[0]
    assert member.member_id == first
    assert member.group_instance_id == "a"
    assert member.client_id == "client"
    assert member.client_host == "/127.0.0.1"
    assert member.member_metadata == b"range metadata"


def test_a_group_that_rebalances_is_described_without_protocol_and_assignments() -> None:
    play = Playbook()
    [member] = play.stable()
    play.join(play.give_id())
    described = play.describe()
    assert described.group_state == "PreparingRebalance"
    assert described.protocol_type == "consumer"
    assert described.protocol_data == ""
    assert described.members[0].member_id == member
    assert described.members[0].member_metadata == described.members[0].member_assignment == b""


def test_empty_and_simple_groups_are_described_as_empty() -> None:
    play = Playbook()
    [member] = play.stable()
    play.leave(MemberIdentity(member_id=member))
    play.commit({("t", 0): 1}, group="simple")
    play.reload()
    for group, protocol_type in (("g", "consumer"), ("simple", "")):
        described = play.describe(group)
        assert described.error_code == ErrorCode.NONE
        assert described.group_state == "Empty"
        assert described.protocol_type == protocol_type


def test_groups_are_listed_with_type_and_state_and_filtered_by_them() -> None:
    play = Playbook()
    play.stable(group="stable")
    play.commit({("t", 0): 1}, group="simple")
    play.give_id(group="announced")
    listed = play.list_groups()
    assert {name: group.group_state for name, group in listed.items()} == {
        "stable": "Stable",
        "simple": "Empty",
        "announced": "Empty",
    }
    assert listed["stable"].protocol_type == "consumer"
    assert listed["simple"].protocol_type == ""
    assert {group.group_type for group in listed.values()} == {"classic"}
    assert set(play.list_groups(states=["stable", "DEAD"])) == {"stable"}
    assert set(play.list_groups(types=["Classic"])) == set(listed)
    assert play.list_groups(types=["share"]) == {}


def test_only_groups_without_members_can_be_deleted() -> None:
    play = Playbook()
    [member] = play.stable()
    assert play.delete_group("no").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    refused = play.delete_group()
    assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
    assert refused.error_message
    play.commit({("t", 0): 1}, member_id=member, generation_id=1)
    play.leave(MemberIdentity(member_id=member))
    deleted = play.delete_group()
    assert deleted.error_code == ErrorCode.NONE
    assert deleted.error_message is None
    assert play.fetch_all() == {}
    assert play.state() == "Dead"
    play.reload()
    assert play.list_groups() == {}


def test_a_failed_append_restores_a_deleted_group() -> None:
    play = Playbook()
    [member] = play.stable()
    play.commit({("t", 0): 1}, member_id=member, generation_id=1)
    play.leave(MemberIdentity(member_id=member))
    play.hold_log()
    call = play.ask(DeleteGroup("g"), version=3)
    play.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert call.refused_with == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert play.state() == "Empty"
    assert play.fetch_all() == {("t", 0): 1}
    assert play.generation() == 2
    again = play.ask(DeleteGroup("g"), version=3)
    assert again.response(DeletableGroupResult).error_code == ErrorCode.NONE


def test_explain_group_returns_the_events() -> None:
    play = Playbook()
    first, _ = play.stable(2)
    play.leave(MemberIdentity(member_id=first, reason="scaling in"))
    assert play.explain()[-3:] == ["assignment stored", "member left", "rebalance started"]
    assert play.explain("no") == []


def test_changed_settings_apply_to_existing_groups() -> None:
    play = Playbook()
    play.shard.settings = GroupSettings(session_timeout_min_ms=20_000)
    assert play.join().joined.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


# -- the log --------------------------------------------------------------------------------------


def hard_state(shard: GroupShard) -> object:
    """The state that a load must restore."""
    return (
        dict(shard.classic.generations.items()),
        {
            group_id: dict(shard.offsets.items(group_id))
            for group_id in shard.offsets.group_ids()
            if shard.offsets.has_any(group_id)
        },
    )


def loaded(log: list[tuple[bytes, bytes | None]]) -> GroupShard:
    """The shard of the next coordinator, loaded as from a compacted log."""
    shard = GroupShard(NO_DELAY)
    loader = CoordinatorLoader(shard)
    loader.replay(log, is_committed=True)
    loader.finish()
    return shard


class Walk:
    """Random members, commits, failures and time against one shard; invariants after each step."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.play = Playbook(GroupSettings(initial_rebalance_delay_ms=500, size_max=6))
        self.parked: dict[int, tuple[GroupCall, int]] = {}
        self.states: dict[int, object] = {0: hard_state(self.play.shard)}
        self.newest_generation: dict[str, int] = {}
        self.assigned: dict[tuple[str, int], dict[str, str]] = {}
        self.ids: list[tuple[str, str]] = []

    def step(self) -> None:
        play, chance = self.play, self.chance
        group = chance.choice(["g1", "g2"])
        instance = chance.choice([None, None, None, "i1", "i2"])
        member = self._member(group)
        generation = self._generation(group)
        match chance.randrange(12):
            case 0 | 1 | 2:
                joining = member if instance is None and chance.random() < 0.7 else ""
                call = play.join(
                    joining,
                    group=group,
                    instance=instance,
                    version=chance.choice([3, 8, 9]),
                    protocols=chance.choice([[("range", b"1")], [("range", b"2"), ("x", b"")]]),
                    rebalance_ms=8_000,
                )
                self._note(call)
            case 3 | 4 | 5:
                self._note(self._sync(group, member, generation))
            case 6:
                self._note(play.heartbeat_call(member, generation, group=group))
            case 7:
                self._note(play.leave_call(MemberIdentity(member_id=member), group=group))
            case 8:
                play.commit_call({("t", chance.randrange(3)): 1}, group=group)
                play.commit_call(
                    {("t", chance.randrange(3)): 2},
                    group=group,
                    member_id=member,
                    generation_id=generation,
                )
            case 9:
                play.tick(chance.choice([100, 1_000, 5_000, 11_000]))
            case 10:
                if play.is_log_held and chance.random() < 0.5:
                    play.release_log()
                elif play.is_log_held:
                    play.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
                elif chance.random() < 0.5:
                    play.hold_log()
            case _:
                if chance.random() < 0.1:
                    play.ask(DeleteGroup(group))
                elif chance.random() < 0.2 and not play.is_log_held:
                    play.reload()
                    self.newest_generation.clear()
        self.check()

    def _member(self, group: str) -> str:
        found = self.play.shard.classic.group(group)
        known = [] if found is None else [member.member_id for member in found.members]
        known += [] if found is None else sorted(found.pending)
        return self.chance.choice(known) if known and self.chance.random() < 0.95 else "nobody"

    def _generation(self, group: str) -> int:
        found = self.play.shard.classic.group(group)
        return 0 if found is None else found.generation_id - (self.chance.random() < 0.05)

    def _sync(self, group: str, member: str, generation: int) -> GroupCall:
        found = self.play.shard.classic.group(group)
        assignments = {}
        if found is not None:
            # Every member gets a partition of its own.
            ids = [one.member_id for one in found.members]
            assignments = {one: b"p%d" % at for at, one in enumerate(ids)}
        name = found.protocol_name if found is not None else None
        return self.play.sync(
            member, generation, assignments, group=group, protocol_name=name, protocol_type=None
        )

    def _note(self, call: GroupCall) -> None:
        # The longest any request may wait: a new member's patience, and the log.
        self.parked[call.request_id] = (call, self.play.now_ms + 300_000)

    def check(self) -> None:
        play = self.play
        for group_id in ("g1", "g2"):
            group = play.shard.classic.group(group_id)
            if group is not None:
                self._check_group(group)
        if not play.is_log_held:
            self.states[len(play.log)] = hard_state(play.shard)
        for request_id, (call, deadline_ms) in list(self.parked.items()):
            if not call.is_parked:
                del self.parked[request_id]
            elif not play.is_log_held:
                assert play.now_ms <= deadline_ms, "a request was never answered"

    def _check_group(self, group: ClassicGroup) -> None:
        newest = self.newest_generation.get(group.group_id, -1)
        is_new = group.generation_id == 0
        assert is_new or group.generation_id >= newest, "the generation went back"
        self.newest_generation[group.group_id] = group.generation_id
        ids = [member.member_id for member in group.members]
        assert group.members.leader_id in ids if ids else group.members.leader_id is None
        assert group.members.joining_count == sum(member.is_joining for member in group.members)
        assert (group.state is GroupState.EMPTY) <= (not ids)
        if group.state is GroupState.STABLE:
            stored = self.play.shard.classic.generations.get(group.group_id)
            assert stored == group.to_metadata(), "the log and the group disagree"
            owned = [member.assignment for member in group.members if member.assignment]
            assert len(owned) == len(set(owned)), "a partition has two owners"
        waiting = any(member.sync_request_id is not None for member in group.members)
        assert not waiting or group.state is GroupState.COMPLETING_REBALANCE
        joining = any(member.is_joining for member in group.members)
        assert not joining or group.state is GroupState.PREPARING_REBALANCE


@pytest.mark.parametrize("seed", range(60))
def test_random_walks_keep_the_invariants_and_any_prefix_of_the_log_loads(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(600):
        walk.step()
    play = walk.play
    if play.is_log_held:
        play.release_log()
    play.tick(400_000)
    walk.check()
    assert walk.parked == {}, f"seed {seed}: requests were never answered"
    shard = loaded([])
    for count, (key, value) in enumerate(play.log, start=1):
        record = shard.decode(key, value)
        assert record is not None
        shard.replay(record)
        if count in walk.states:
            assert hard_state(shard) == walk.states[count], f"seed {seed}, prefix of {count}"
    for count in list(walk.states)[::50]:
        assert hard_state(loaded(play.log[:count])) == walk.states[count], f"seed {seed}, {count}"


def test_every_prefix_of_a_recorded_log_gives_the_state_at_its_end() -> None:
    play = Playbook()
    states = {0: hard_state(play.shard)}

    def remember() -> None:
        states[len(play.log)] = hard_state(play.shard)

    first, second = play.stable(2, instances=["a"])
    remember()
    for offset in range(5):
        play.commit({("t", offset): offset}, member_id=first, generation_id=2)
        remember()
    play.join(instance="a")
    remember()
    play.leave(MemberIdentity(member_id=second))
    play.tick(100_000)
    remember()
    play.commit({("u", 0): 1}, group="simple")
    remember()
    play.delete_offsets("u", 0, group="simple")
    remember()
    play.delete_group()
    remember()
    assert len(states) >= 10
    for count, state in states.items():
        assert hard_state(loaded(play.log[:count])) == state, count


def test_records_of_unknown_types_in_the_log_are_skipped() -> None:
    play = Playbook(log=[(b"\x00\x09\x00\x01g", b"\x00\x00\x00\x00\x00\x05")])
    assert play.list_groups() == {}
    assert play.commit({("t", 0): 1}) == ErrorCode.NONE


def test_a_stored_generation_is_never_newer_than_the_group() -> None:
    play = Playbook()
    play.stable(2)
    records = [play.shard.decode(key, value) for key, value in play.log]
    stored = [record for record in records if isinstance(record, GroupMetadataRecord)]
    group = play.shard.classic.group("g")
    assert group is not None
    assert stored[-1].metadata == group.to_metadata()
