"""Members that leave or restart during a rebalance, and a move of the coordinator in it."""

import pytest

from odradek.coordinator.group.classic.members import ClassicGroupMember, ClassicMembers
from odradek.coordinator.group.classic.records import GroupMetadata, MemberMetadata
from odradek.coordinator.group.classic.stored_generation import (
    LARGE_GROUP_DELAY_MS,
    LARGE_GROUP_SIZE,
    is_rebalancing,
    remaining_generation,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import MemberIdentity
from tests.support.group_playbook import REBALANCE_MS, SESSION_MS, Playbook

NONE = ErrorCode.NONE
AGAIN = ErrorCode.REBALANCE_IN_PROGRESS


def stored_member(member_id: str, instance_id: str | None = None) -> MemberMetadata:
    return MemberMetadata(
        member_id=member_id,
        group_instance_id=instance_id,
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        assignment=member_id.encode(),
    )


def members_of(*stored: MemberMetadata) -> ClassicMembers:
    members = ClassicMembers()
    for member in stored:
        members.add(ClassicGroupMember.of_metadata(member, "range"))
    return members


STORED = GroupMetadata(
    generation_id=3,
    protocol_name="range",
    leader_id="a",
    members=(stored_member("a"), stored_member("b"), stored_member("s-1", "s")),
)


def test_a_generation_whose_members_are_all_left_is_not_written_again() -> None:
    newcomer = stored_member("new")
    assert remaining_generation(STORED, members_of(*STORED.members, newcomer)) is None
    assert not is_rebalancing(STORED)


def test_the_generation_without_those_that_have_left_has_no_leader() -> None:
    remaining = remaining_generation(STORED, members_of(*STORED.members[1:]))
    assert remaining is not None
    assert (remaining.members, remaining.leader_id) == (STORED.members[1:], None)
    assert (remaining.generation_id, remaining.protocol_name) == (3, "range")
    assert is_rebalancing(remaining)


def test_a_static_member_has_its_newest_id_and_keeps_its_assignment() -> None:
    restarted = stored_member("s-2", "s")
    remaining = remaining_generation(STORED, members_of(*STORED.members[:2], restarted))
    assert remaining is not None
    assert [member.member_id for member in remaining.members] == ["a", "b", "s-2"]
    assert remaining.members[2].assignment == b"s-1"


def test_a_generation_of_which_nobody_is_left_is_empty() -> None:
    remaining = remaining_generation(STORED, members_of(stored_member("new")))
    assert remaining == GroupMetadata(generation_id=3)
    assert not is_rebalancing(GroupMetadata(generation_id=3))


# -- a move of the coordinator ---------------------------------------------------------------------


@pytest.mark.parametrize("instances", [[], ["s", "t", "u"]], ids=["dynamic", "static"])
@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "expires"])
def test_nobody_waits_for_a_member_that_left_before_the_move(
    instances: list[str], *, leaves: bool
) -> None:
    play = Playbook()
    ids = play.stable(3, instances=instances)
    names: list[str | None] = [*instances] or [None] * 3
    generation = play.generation()
    if leaves:
        # As an administrator removes a static member.
        gone = MemberIdentity(member_id="" if instances else ids[2], group_instance_id=names[2])
        assert play.leave(gone).members[0].error_code == NONE
    else:
        play.tick(SESSION_MS - 1)
        for member in (0, 1):
            play.heartbeat(ids[member], generation, instance=names[member])
        play.tick(1)
    waiting = play.join(ids[0], instance=names[0])
    play.reload()
    assert waiting.refused_with == ErrorCode.NOT_COORDINATOR
    assert play.state() == "PreparingRebalance"
    again = play.join(ids[0], instance=names[0])
    assert play.heartbeat(ids[1], generation, instance=names[1]) == AGAIN
    other = play.join(ids[1], instance=names[1])
    for member_id, call in zip(ids, (again, other), strict=False):
        assert (call.joined.error_code, call.joined.member_id) == (NONE, member_id)
        assert call.joined.generation_id == generation + 1
    assert [member.member_id for member in again.joined.members or other.joined.members] == ids[:2]


def test_a_rebalance_continues_after_a_move_though_nobody_joins_again() -> None:
    """The partitions of the one that has left are assigned to the others."""
    play = Playbook()
    ids = play.stable(2)
    play.leave(MemberIdentity(member_id=ids[0]))
    play.reload()
    assert play.heartbeat(ids[1], play.generation()) == AGAIN
    play.tick(REBALANCE_MS)
    assert play.state() == "Empty"


def test_a_static_member_that_restarts_in_a_rebalance_is_not_fenced_after_a_move() -> None:
    play = Playbook()
    first, second = play.stable(2, instances=["s", "t"])
    play.join(first, instance="s", protocols=[("range", b"changed")])
    restarted = play.join(instance="t").joined
    assert (restarted.error_code, restarted.generation_id) == (NONE, play.generation())
    assert restarted.member_id != second
    play.reload()
    # It had its generation, and waited for its assignment.
    told = play.sync(restarted.member_id, restarted.generation_id, instance="t").synced.error_code
    assert told == AGAIN
    waiting = play.join(restarted.member_id, instance="t")
    assert play.join(first, instance="s").joined.error_code == NONE
    assert (waiting.joined.error_code, waiting.joined.member_id) == (NONE, restarted.member_id)
    assert play.join(second, instance="t").joined.error_code == ErrorCode.FENCED_INSTANCE_ID


def test_moves_in_a_row_lose_nothing_of_it() -> None:
    play = Playbook()
    ids = play.stable(3)
    play.leave(MemberIdentity(member_id=ids[2]))
    for _ in range(3):
        play.reload()
        waiting = play.join(ids[0])
    assert play.join(ids[1]).joined.error_code == NONE
    assert waiting.joined.generation_id == play.generation()


def test_large_groups_write_it_once_a_second() -> None:
    play = Playbook()
    count = LARGE_GROUP_SIZE + 4
    ids = play.stable(count)
    before = len(play.log)
    for member_id in ids[:2]:
        play.leave(MemberIdentity(member_id=member_id))
    assert len(play.log) == before
    play.tick(LARGE_GROUP_DELAY_MS)
    assert len(play.log) == before + 1
    stored = play.shard.classic.generations.get("g")
    assert stored is not None
    assert len(stored.members) == count - 2
    play.tick(LARGE_GROUP_DELAY_MS)
    assert len(play.log) == before + 1


def test_a_rebalance_that_is_over_writes_nothing_more() -> None:
    play = Playbook()
    ids = play.stable(LARGE_GROUP_SIZE + 2)
    play.leave(MemberIdentity(member_id=ids[-1]))
    for member_id in ids[:-1]:
        play.join(member_id)
    generation = play.generation()
    play.sync(ids[0], generation, {ids[0]: b"all"})
    before = len(play.log)
    play.tick(LARGE_GROUP_DELAY_MS)
    assert len(play.log) == before
