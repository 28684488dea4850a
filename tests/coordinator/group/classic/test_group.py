"""The rebalance of classic groups: phases, deadlines, generations, sessions, records."""

import pytest

from odradek.coordinator.group.classic.records import GroupMetadataRecord
from odradek.coordinator.group.records import decode
from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import MemberIdentity
from tests.support.group_playbook import NO_DELAY, REBALANCE_MS, SESSION_MS, GroupCall, Playbook

DELAY = GroupSettings(initial_rebalance_delay_ms=3_000)


def stored_generations(play: Playbook) -> list[int]:
    """The generations in the log, in the order in which they were written."""
    records = [decode(key, value) for key, value in play.log]
    return [
        record.metadata.generation_id
        for record in records
        if isinstance(record, GroupMetadataRecord) and record.metadata is not None
    ]


def test_the_first_member_is_the_leader_of_generation_one_and_gets_all_members() -> None:
    play = Playbook()
    joined = play.join(play.give_id()).joined
    assert joined.error_code == ErrorCode.NONE
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id
    assert joined.protocol_type == "consumer"
    assert joined.protocol_name == "range"
    assert [member.metadata for member in joined.members] == [b"range metadata"]
    assert play.state() == "CompletingRebalance"


def test_leaders_sync_stores_the_assignments_and_makes_the_group_stable() -> None:
    play = Playbook()
    first, second = play.stable(2)
    assert play.state() == "Stable"
    assert play.sync(first, 2).synced.assignment == b"0"
    assert play.sync(second, 2).synced.assignment == b"1"
    assert stored_generations(play) == [2]


def test_followers_get_an_empty_member_list_and_the_leaders_name() -> None:
    play = Playbook()
    [leader] = play.stable()
    follower = play.join(play.give_id())
    again = play.join(leader)
    assert [member.member_id for member in again.joined.members] == [
        leader,
        follower.joined.member_id,
    ]
    assert follower.joined.members == []
    assert follower.joined.leader == leader


def test_a_generation_waits_for_every_member_to_rejoin() -> None:
    play = Playbook()
    first, second = play.stable(2)
    third = play.join(play.give_id())
    assert play.state() == "PreparingRebalance"
    assert third.is_parked
    again = play.join(first)
    assert again.is_parked
    assert third.is_parked
    play.join(second)
    assert again.joined.generation_id == third.joined.generation_id == 3


def test_members_that_do_not_rejoin_within_the_rebalance_timeout_are_dropped() -> None:
    play = Playbook()
    first, second = play.stable(2, session_ms=600_000)
    third = play.join(play.give_id(), session_ms=600_000)
    play.join(first, session_ms=600_000)
    play.tick(REBALANCE_MS - 1)
    assert third.is_parked
    play.tick(1)
    assert third.joined.generation_id == 3
    assert play.heartbeat(second, 3) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_of_all_members_applies() -> None:
    play = Playbook()
    play.stable(session_ms=600_000)
    other = play.join(play.give_id(), rebalance_ms=REBALANCE_MS + 5_000)
    play.tick(REBALANCE_MS + 4_999)
    assert other.is_parked
    play.tick(1)
    assert not other.is_parked


def test_version_zero_joins_with_its_session_timeout_for_both() -> None:
    play = Playbook()
    play.stable(session_ms=600_000)
    old = play.join(version=0, session_ms=90_000, rebalance_ms=-1)
    play.tick(89_999)
    assert old.is_parked
    play.tick(1)
    assert not old.is_parked


def test_a_new_leader_is_elected_when_the_old_one_does_not_rejoin() -> None:
    play = Playbook()
    first, second = play.stable(2, session_ms=600_000)
    third = play.join(play.give_id(), session_ms=600_000)
    again = play.join(second, session_ms=600_000)
    play.tick(REBALANCE_MS)
    assert again.joined.leader == second
    assert len(again.joined.members) == 2
    assert third.joined.members == []
    assert play.heartbeat(first, 3) == ErrorCode.UNKNOWN_MEMBER_ID


# -- the initial delay ----------------------------------------------------------------------------


def test_an_empty_group_waits_for_the_initial_delay() -> None:
    play = Playbook(DELAY)
    call = play.join(play.give_id())
    play.tick(2_999)
    assert call.is_parked
    play.tick(1)
    assert call.joined.generation_id == 1


def test_members_that_arrive_prolong_the_initial_delay() -> None:
    play = Playbook(DELAY)
    first = play.join(play.give_id())
    play.tick(2_000)
    second = play.join(play.give_id())
    play.tick(2_999)
    assert first.is_parked
    play.tick(1)
    assert len(first.joined.members) == 2
    assert second.joined.generation_id == 1


def test_members_that_start_together_wait_for_one_initial_delay() -> None:
    play = Playbook(DELAY)
    calls = []
    for _ in range(20):
        calls.append(play.join(play.give_id()))
        play.tick(10)
    play.tick(3_000)
    assert {call.joined.generation_id for call in calls} == {1}
    assert len(calls[0].joined.members) == 20


def test_the_initial_delay_is_capped_by_the_rebalance_timeout() -> None:
    play = Playbook(DELAY)
    calls: list[GroupCall] = [play.join(play.give_id(), rebalance_ms=7_000, session_ms=600_000)]
    for _ in range(6):
        play.tick(1_000)
        calls.append(play.join(play.give_id(), rebalance_ms=7_000, session_ms=600_000))
    assert all(call.is_parked for call in calls)
    play.tick(1_000)
    assert len(calls[0].joined.members) == 7


def test_the_initial_delay_applies_again_after_the_group_was_empty() -> None:
    play = Playbook(DELAY)
    call = play.join(play.give_id())
    play.tick(3_000)
    play.leave(MemberIdentity(member_id=call.joined.member_id))
    assert play.state() == "Empty"
    again = play.join(play.give_id())
    assert again.is_parked
    play.tick(3_000)
    assert again.joined.generation_id == 3


# -- protocols ------------------------------------------------------------------------------------


def test_the_protocol_with_the_most_first_votes_wins() -> None:
    play = Playbook()
    a = play.join(play.give_id(), protocols=[("sticky", b"a"), ("range", b"A")])
    b = play.join(play.give_id(), protocols=[("range", b"B"), ("sticky", b"b")])
    play.join(a.joined.member_id, protocols=[("sticky", b"a"), ("range", b"A")])
    c = play.join(play.give_id(), protocols=[("range", b"C"), ("sticky", b"c")])
    play.join(b.joined.member_id, protocols=[("range", b"B"), ("sticky", b"b")])
    leader = play.join(a.joined.member_id, protocols=[("sticky", b"a"), ("range", b"A")])
    assert c.joined.protocol_name == "range"
    assert [member.metadata for member in leader.joined.members] == [b"A", b"B", b"C"]


def test_only_protocols_that_all_members_support_can_be_selected() -> None:
    play = Playbook()
    a = play.join(play.give_id(), protocols=[("sticky", b"a"), ("range", b"A")])
    b = play.join(play.give_id(), protocols=[("range", b"B")])
    play.join(a.joined.member_id, protocols=[("sticky", b"a"), ("range", b"A")])
    assert b.joined.protocol_name == "range"


# -- SyncGroup ------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_assignment() -> None:
    play = Playbook()
    [leader] = play.stable()
    follower = play.join(play.give_id()).request_id
    play.join(leader)
    member_id = play.calls[follower].joined.member_id
    waiting = play.sync(member_id, 2)
    assert waiting.is_parked
    play.sync(leader, 2, {leader: b"one", member_id: b"two"})
    assert waiting.synced.assignment == b"two"
    assert waiting.synced.protocol_type == "consumer"
    assert waiting.synced.protocol_name == "range"


def test_members_the_leader_leaves_out_get_an_empty_assignment() -> None:
    play = Playbook()
    first, second = play.stable(2)
    play.join(first)
    play.join(second)
    play.sync(first, 3, {first: b"all"})
    assert play.sync(second, 3).synced.assignment == b""


def test_sync_errors_in_their_order() -> None:
    play = Playbook()
    [member] = play.stable()
    assert play.sync(member, 1, group="").synced.error_code == ErrorCode.INVALID_GROUP_ID
    assert play.sync(member, 1, group="no").synced.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert play.sync("no", 1).synced.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert play.sync(member, 7).synced.error_code == ErrorCode.ILLEGAL_GENERATION
    wrong_type = play.sync(member, 1, protocol_type="connect")
    assert wrong_type.synced.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong_name = play.sync(member, 1, protocol_name="sticky")
    assert wrong_name.synced.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert play.sync(member, 1, protocol_type=None, protocol_name=None).synced.error_code == 0
    play.join(play.give_id())
    assert play.sync(member, 1).synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_rebalance_answers_syncs_that_wait_with_rebalance_in_progress() -> None:
    play = Playbook()
    first, second = play.stable(2)
    play.join(first)
    play.join(second)
    waiting = play.sync(second, 3)
    play.join(play.give_id())
    assert waiting.synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert waiting.synced.assignment == b""


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout() -> None:
    play = Playbook()
    first, second = play.stable(2, session_ms=600_000)
    play.join(first, session_ms=600_000)
    play.join(second, session_ms=600_000)
    play.sync(first, 3, {first: b"", second: b""})
    play.tick(REBALANCE_MS)
    assert play.heartbeat(second, 3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert play.heartbeat(first, 3) == ErrorCode.REBALANCE_IN_PROGRESS
    assert play.join(first).joined.generation_id == 4


def test_the_sync_wait_ends_when_all_have_synced() -> None:
    play = Playbook()
    play.stable(2, session_ms=600_000)
    play.tick(REBALANCE_MS * 2)
    assert play.state() == "Stable"


# -- heartbeats and sessions ----------------------------------------------------------------------


def test_heartbeat_answers_by_state() -> None:
    play = Playbook()
    assert play.heartbeat("x", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert play.heartbeat("x", 1, group="") == ErrorCode.INVALID_GROUP_ID
    member = play.join(play.give_id()).joined.member_id
    assert play.state() == "CompletingRebalance"
    assert play.heartbeat(member, 1) == ErrorCode.NONE
    assert play.heartbeat(member, 0) == ErrorCode.ILLEGAL_GENERATION
    play.sync(member, 1, {member: b""})
    assert play.heartbeat(member, 1) == ErrorCode.NONE
    play.join(play.give_id())
    assert play.heartbeat(member, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    play.leave(MemberIdentity(member_id=member))
    assert play.heartbeat(member, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_without_heartbeats_expires_and_the_others_rebalance() -> None:
    play = Playbook()
    first, second = play.stable(2)
    play.tick(SESSION_MS - 1)
    assert play.heartbeat(first, 2) == ErrorCode.NONE
    play.tick(1)
    assert play.heartbeat(second, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert play.heartbeat(first, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert "member expired" in play.explain()


def test_the_last_member_that_expires_leaves_an_empty_group_of_the_next_generation() -> None:
    play = Playbook()
    play.stable()
    play.tick(SESSION_MS)
    assert play.state() == "Empty"
    assert play.generation() == 2
    assert stored_generations(play) == [1, 2]


def test_a_member_that_waits_in_join_or_sync_does_not_expire() -> None:
    play = Playbook()
    first, second = play.stable(2, session_ms=SESSION_MS)
    play.join(play.give_id(), session_ms=600_000)
    waiting = play.join(first)
    for _ in range(5):
        play.tick(SESSION_MS - 1)
        assert play.heartbeat(second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert waiting.is_parked
    play.join(second)
    assert waiting.joined.error_code == ErrorCode.NONE


@pytest.mark.parametrize("sign", ["heartbeat", "sync", "commit", "join"])
def test_every_valid_request_extends_the_session(sign: str) -> None:
    play = Playbook()
    first, second = play.stable(2)
    for _ in range(3):
        play.tick(SESSION_MS - 1)
        play.heartbeat(first, 2)
        match sign:
            case "heartbeat":
                assert play.heartbeat(second, 2) == ErrorCode.NONE
            case "sync":
                assert play.sync(second, 2).synced.error_code == ErrorCode.NONE
            case "commit":
                error = play.commit({("t", 0): 1}, member_id=second, generation_id=2)
                assert error == ErrorCode.NONE
            case _:
                assert play.join(second).joined.generation_id == 2
    assert play.state() == "Stable"


def test_a_new_member_waits_for_its_first_rebalance_five_minutes_at_most() -> None:
    play = Playbook()
    [member] = play.stable(session_ms=1_800_000)
    other = play.join(play.give_id(), rebalance_ms=1_000_000)
    play.tick(NO_DELAY.new_member_join_timeout_ms - 1)
    play.heartbeat(member, 1)
    assert other.is_parked
    play.tick(1)
    assert other.joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert other.joined.member_id == ""


# -- what a failed append does --------------------------------------------------------------------


def test_an_assignment_that_cannot_be_stored_is_refused_and_the_group_rebalances() -> None:
    play = Playbook()
    first, second = play.stable(2)
    play.join(first)
    play.join(second)
    follower = play.sync(second, 3)
    play.hold_log()
    leader = play.sync(first, 3, {first: b"new", second: b"new"})
    assert leader.is_parked
    assert follower.is_parked
    play.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert leader.refused_with == follower.refused_with == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert play.heartbeat(first, 3) == ErrorCode.REBALANCE_IN_PROGRESS
    play.join(first)
    assert play.join(second).joined.generation_id == 4


def test_an_empty_group_that_cannot_be_stored_is_stored_later() -> None:
    play = Playbook()
    [member] = play.stable()
    play.hold_log()
    call = play.leave_call(MemberIdentity(member_id=member))
    play.fail_log(ErrorCode.KAFKA_STORAGE_ERROR)
    assert call.refused_with == ErrorCode.NOT_COORDINATOR
    assert play.state() == "Empty"
    assert stored_generations(play) == [1]
    play.tick(1_000)
    assert stored_generations(play) == [1, 2]
    play.reload()
    assert play.state() == "Empty"


def test_a_join_waits_for_the_commit_of_earlier_records() -> None:
    play = Playbook()
    [member] = play.stable()
    play.hold_log()
    play.leave_call(MemberIdentity(member_id=member))
    call = play.join(version=3)
    assert call.is_parked
    play.release_log()
    assert call.joined.generation_id == 3


def test_a_reloaded_stable_group_continues_with_full_sessions() -> None:
    play = Playbook()
    first, second = play.stable(2)
    play.tick(SESSION_MS - 1)
    play.reload()
    assert play.state() == "Stable"
    play.tick(SESSION_MS - 1)
    assert play.heartbeat(first, 2) == ErrorCode.NONE
    assert play.heartbeat(second, 2) == ErrorCode.NONE
    assert play.sync(second, 2).synced.assignment == b"1"
    assert play.join(second).joined.generation_id == 2
    assert play.describe().protocol_data == "range"


def test_a_group_over_a_lowered_size_rebalances_when_it_is_loaded() -> None:
    play = Playbook()
    play.stable(3)
    play.shard.settings = GroupSettings(size_max=2, initial_rebalance_delay_ms=0)
    play.reload()
    assert play.state() == "PreparingRebalance"
