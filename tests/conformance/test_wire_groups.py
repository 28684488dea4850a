"""Classic groups: FindCoordinator (10), JoinGroup (11), SyncGroup (14), Heartbeat (12) and
LeaveGroup (13) of dynamic members.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.conformance.dialogue import METADATA, DialogueCluster, unique
from tests.conformance.members import RawMember, form, stabilise, subscription, wait_for_coordinator
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

NewMember = Callable[..., RawMember]
SHORT_MS = 2_500
"""A rebalance timeout that is waited for, and kept on a busy machine by those who must keep it."""


@pytest.fixture
def member(cluster: DialogueCluster, group: str) -> Iterator[NewMember]:
    """Makes members of the test's group, each with its own connection."""
    wait_for_coordinator(cluster, group)
    with ExitStack() as connections:
        yield lambda **options: RawMember(
            connections.enter_context(cluster.connect()), group, **options
        )


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_of_a_group_is_a_broker(
    wire: WireClient, cluster: DialogueCluster, group: str, version: int
) -> None:
    """B.2: "key_type 0 group [...]; v4+ batches keys"."""
    wait_for_coordinator(cluster, group)
    brokers = wire.ask(MetadataRequest(topics=[]), METADATA, MetadataResponse).brokers
    known = {(broker.node_id, broker.host, broker.port) for broker in brokers}
    if version < 4:
        request = FindCoordinatorRequest(key=group)
        found = wire.ask(request, version, FindCoordinatorResponse)
        assert found.error_code == ErrorCode.NONE
        assert (found.node_id, found.host, found.port) in known
    else:
        keys = [group, unique("group")]
        request = FindCoordinatorRequest(coordinator_keys=keys)
        answer = wire.ask(request, version, FindCoordinatorResponse)
        assert [coordinator.key for coordinator in answer.coordinators] == keys
        for each in answer.coordinators:
            assert each.error_code == ErrorCode.NONE
            assert (each.node_id, each.host, each.port) in known


def test_an_unknown_kind_of_coordinator_is_an_invalid_request(wire: WireClient) -> None:
    """B.2: "Unknown type INVALID_REQUEST (42)"."""
    request = FindCoordinatorRequest(key="x", key_type=9)
    answer = wire.ask(request, 3, FindCoordinatorResponse)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)


@pytest.mark.parametrize("version", range(10))
def test_a_lone_member_leads_its_group(member: NewMember, version: int) -> None:
    """B.2: "Only the leader gets members"; "protocol_type in response" from v7."""
    alone = member(version=version)
    answer = alone.join()
    assert (answer.leader, answer.protocol_name) == (alone.id, "range")
    assert answer.generation_id > 0
    (listed,) = answer.members
    assert (listed.member_id, listed.metadata) == (alone.id, alone.metadata)
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert not answer.skip_assignment
    assert alone.sync({alone.id: b"everything"}).assignment == b"everything"
    assert alone.heartbeat() == ErrorCode.NONE


@pytest.mark.parametrize("version", range(4, 10))
def test_a_new_member_must_come_back_with_its_id(member: NewMember, version: int) -> None:
    """B.2: "v4+, empty member id, no instance id: allocate id [...], answer MEMBER_ID_REQUIRED
    (79) with that id and generation -1; second join uses it".
    """
    newcomer = member(version=version)
    refused = newcomer.join_once()
    assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert refused.generation_id == -1
    assert refused.member_id
    assert refused.leader == ""
    assert refused.members == []
    assert refused.protocol_name == (None if version >= 7 else "")
    accepted = newcomer.join_once()
    assert accepted.error_code == ErrorCode.NONE
    assert accepted.member_id == refused.member_id


@pytest.mark.parametrize("version", range(4))
def test_old_members_join_at_once(member: NewMember, version: int) -> None:
    """B.2: "v0-3 join at once"."""
    answer = member(version=version).join_once()
    assert answer.error_code == ErrorCode.NONE
    assert answer.member_id == answer.leader


def test_a_member_id_is_the_brokers_to_give(member: NewMember) -> None:
    """B.2: "Unknown non-empty id: UNKNOWN_MEMBER_ID (25), also when the group is Empty/Dead"."""
    stranger = member()
    stranger.id = "made-up"
    answer = stranger.join_once()
    assert (answer.error_code, answer.generation_id) == (ErrorCode.UNKNOWN_MEMBER_ID, -1)
    other = member()
    stabilise(other)
    assert stranger.join_once().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert other.leave() == ErrorCode.NONE
    assert stranger.join_once().error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [4, 7])
def test_a_group_needs_a_name(member: NewMember, version: int) -> None:
    """B.2: "empty group id INVALID_GROUP_ID (24)"; "errors carry null in v7+, "" below"."""
    nameless = member(version=version)
    nameless.group = ""
    answer = nameless.join_once()
    assert answer.error_code == ErrorCode.INVALID_GROUP_ID
    assert answer.protocol_name == (None if version >= 7 else "")
    assert answer.protocol_type is None


@pytest.mark.parametrize("session_timeout_ms", [-1, 0, 1_800_001, 2**31 - 1])
def test_a_session_timeout_has_bounds(member: NewMember, session_timeout_ms: int) -> None:
    """B.2: "session timeout outside [6000, 1800000] INVALID_SESSION_TIMEOUT (26)"."""
    strange = member()
    strange.session_timeout_ms = session_timeout_ms
    assert strange.join_once().error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_member_without_protocols_is_inconsistent(member: NewMember) -> None:
    """B.2: "protocol_type empty/different or no protocol common to ALL members, or empty list
    (23)".
    """
    assert member(protocols=()).join_once().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    typeless = member()
    typeless.protocol_type = ""
    assert typeless.join_once().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_members_must_have_a_protocol_in_common(member: NewMember) -> None:
    """B.2: as above, beside a member that is there already."""
    stabilise(member(protocols=("range", "roundrobin")))
    other = member(protocols=("sticky",))
    assert other.join_once().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    connector = member()
    connector.protocol_type = "connect"
    assert connector.join_once().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_two_members_share_a_generation(member: NewMember) -> None:
    """B.2: "Only the leader gets members; followers an empty list"."""
    one, other = subscription("a", user_data=b"one"), subscription("b", user_data=b"other")
    first, second = member(metadata=one), member(metadata=other)
    leading, following = form(first, second)
    assert leading.generation_id == following.generation_id == 2
    assert leading.leader == following.leader == first.id
    assert {each.member_id: each.metadata for each in leading.members} == {
        first.id: one,
        second.id: other,
    }
    assert following.members == []
    assert following.protocol_name == leading.protocol_name == "range"


def test_members_vote_for_a_protocol_they_all_have(member: NewMember) -> None:
    """B.2: "Protocol = vote of each member's first choice among the common set"."""
    joined = form(
        member(protocols=("mine", "range", "sticky")),
        member(protocols=("theirs", "sticky", "range")),
        member(protocols=("sticky", "range", "ours")),
    )
    assert {answer.protocol_name for answer in joined} == {"sticky"}


@pytest.mark.no_restarts("a coordinator that moves forgets the generation that is not synced")
def test_followers_wait_for_the_leaders_assignment(member: NewMember) -> None:
    """B.2: "CompletingRebalance: followers wait, the leader's assignments are persisted then all
    are answered; absent members get empty bytes"; and heartbeats: "NONE".
    """
    leader, follower, absent = member(), member(), member()
    form(leader, follower, absent)
    follower.post_sync()
    assert follower.wire.is_silent(0.1)
    assert leader.heartbeat() == ErrorCode.NONE
    answer = leader.sync({leader.id: b"one", follower.id: b"two"})
    assert (answer.error_code, answer.assignment) == (ErrorCode.NONE, b"one")
    assert follower.synced().assignment == b"two"
    late = absent.sync()
    assert (late.error_code, late.assignment) == (ErrorCode.NONE, b"")


def test_a_stable_group_repeats_its_assignment(member: NewMember) -> None:
    """B.2: "Stable: answer the stored assignment at once"."""
    alone = member()
    stabilise(alone)
    again = alone.sync({alone.id: b"something else"})
    assert (again.error_code, again.assignment) == (ErrorCode.NONE, alone.id.encode())


def test_the_assignment_of_a_stranger_is_ignored(member: NewMember) -> None:
    alone = member()
    alone.join()
    assert alone.sync({"nobody": b"x", alone.id: b"mine"}).assignment == b"mine"


def test_sync_names_the_group_protocol_since_version_5(member: NewMember) -> None:
    """B.2: "v5: protocol type and name must both be present and equal to the group's, else
    INCONSISTENT_GROUP_PROTOCOL (23)".
    """
    alone = member()
    alone.join()

    def sync(protocol_type: str | None, protocol_name: str | None) -> SyncGroupResponse:
        request = SyncGroupRequest(
            group_id=alone.group,
            generation_id=alone.generation,
            member_id=alone.id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[SyncGroupRequestAssignment(member_id=alone.id, assignment=b"a")],
        )
        return alone.wire.ask(request, 5, SyncGroupResponse)

    for wrong in ((None, "range"), ("consumer", None), ("consumer", "x"), ("connect", "range")):
        assert sync(*wrong).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    right = sync("consumer", "range")
    assert (right.error_code, right.assignment) == (ErrorCode.NONE, b"a")
    assert (right.protocol_type, right.protocol_name) == ("consumer", "range")


def test_sync_refuses_strangers_and_other_generations(member: NewMember) -> None:
    """B.2: "Wrong generation ILLEGAL_GENERATION (22), (25), (82)"."""
    alone, stranger = member(), member()
    assert alone.sync().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    stabilise(alone)
    stranger.id, stranger.generation = "stranger", alone.generation
    assert stranger.sync().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    for generation in (alone.generation + 1, alone.generation - 1, -1):
        late = member()
        late.id, late.generation = alone.id, generation
        assert late.sync().error_code == ErrorCode.ILLEGAL_GENERATION


def test_heartbeats_tell_how_the_group_is(member: NewMember) -> None:
    """B.2: "Stable and CompletingRebalance: NONE [...]; PreparingRebalance: (27); Empty/Dead/
    unknown: (25); wrong generation (22)".
    """
    first, second = member(), member()
    first.id = "nobody"
    assert first.heartbeat(1) == ErrorCode.UNKNOWN_MEMBER_ID
    first.id = ""
    first.join()
    assert first.heartbeat() == ErrorCode.NONE
    first.sync({first.id: b""})
    assert first.heartbeat() == ErrorCode.NONE
    for generation in (first.generation + 1, 0, -1):
        assert first.heartbeat(generation) == ErrorCode.ILLEGAL_GENERATION
    second.get_id()
    assert first.heartbeat() == ErrorCode.NONE
    second.post_join()
    wait_until(
        lambda: first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, what="the rebalance begins"
    )
    assert first.sync().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert first.leave() == ErrorCode.NONE
    assert first.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert second.joined().leader == second.id


def test_a_follower_that_changes_nothing_does_not_disturb(member: NewMember) -> None:
    """B.2: "Identical rejoin by a follower in Stable returns the current generation without
    rebalance; by the leader or with changed metadata it triggers one".
    """
    leader, follower = member(), member()
    stabilise(leader, follower)
    generation = leader.generation
    again = follower.join()
    assert (again.generation_id, again.leader, again.members) == (generation, leader.id, [])
    assert leader.heartbeat() == ErrorCode.NONE
    follower.metadata = subscription("changed")
    follower.post_join()
    wait_until(
        lambda: leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, what="the rebalance begins"
    )
    assert leader.join().generation_id == generation + 1
    assert follower.joined().generation_id == generation + 1


def test_the_leader_can_call_for_a_rebalance(member: NewMember) -> None:
    """B.2: as above, "so cooperative clients can force follow-up rebalances"."""
    leader, follower = member(), member()
    stabilise(leader, follower)
    leader.post_join()
    wait_until(
        lambda: follower.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, what="the rebalance"
    )
    follower.post_join()
    assert leader.joined().leader == follower.joined().leader == leader.id


def test_a_member_that_does_not_rejoin_in_time_is_dropped(member: NewMember) -> None:
    """B.2: "wait for all to rejoin up to max rebalance timeout, drop those who did not"."""
    gone, stays = member(), member()
    gone.rebalance_timeout_ms = stays.rebalance_timeout_ms = SHORT_MS
    stabilise(gone)
    answer = stays.join()
    assert (answer.leader, len(answer.members)) == (stays.id, 1)
    assert gone.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.no_restarts("a coordinator that moves forgets the generation that is not synced")
def test_a_member_that_does_not_sync_in_time_is_dropped(member: NewMember) -> None:
    """B.2: "Members that joined but never sync within the rebalance timeout are removed and a new
    rebalance starts".
    """
    leader, silent = member(), member()
    leader.rebalance_timeout_ms = silent.rebalance_timeout_ms = SHORT_MS
    form(leader, silent)
    leader.sync({leader.id: b"", silent.id: b""})
    wait_until(
        lambda: leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, what="a new rebalance"
    )
    answer = leader.join()
    assert [each.member_id for each in answer.members] == [leader.id]
    assert silent.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.slow
def test_a_member_whose_session_ends_is_expired(member: NewMember) -> None:
    """B.2: "Missing session: member expired, rebalance with reason"."""
    silent, alive = member(), member()
    silent.session_timeout_ms = 6000
    stabilise(silent, alive)
    wait_until(
        lambda: alive.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS,
        timeout_s=20,
        what="the silent member's session ends",
    )
    assert len(alive.join().members) == 1
    assert silent.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(3))
def test_a_member_leaves_in_old_versions(member: NewMember, version: int) -> None:
    """B.2: "v0-2 one member"."""
    alone = member()
    stabilise(alone)
    for expected in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
        request = LeaveGroupRequest(group_id=alone.group, member_id=alone.id)
        assert alone.wire.ask(request, version, LeaveGroupResponse).error_code == expected


@pytest.mark.parametrize("version", range(3, 6))
def test_members_leave_together(member: NewMember, version: int) -> None:
    """B.2: "v3+ list of (member_id, group_instance_id), per-member errors (25)/(82), top-level
    NONE".
    """
    first, second = member(), member()
    stabilise(first, second)
    request = LeaveGroupRequest(
        group_id=first.group,
        members=[MemberIdentity(member_id=each) for each in (second.id, "nobody", first.id)],
    )
    answer = first.wire.ask(request, version, LeaveGroupResponse)
    assert answer.error_code == ErrorCode.NONE
    codes = {each.member_id: each.error_code for each in answer.members}
    assert codes == {
        first.id: ErrorCode.NONE,
        second.id: ErrorCode.NONE,
        "nobody": ErrorCode.UNKNOWN_MEMBER_ID,
    }


def test_a_member_that_leaves_makes_the_others_rebalance(member: NewMember) -> None:
    first, second = member(), member()
    stabilise(first, second)
    assert first.leave() == ErrorCode.NONE
    assert second.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    answer = second.join()
    assert (answer.leader, answer.generation_id) == (second.id, 3)


def test_an_empty_group_keeps_its_generation(member: NewMember) -> None:
    """B.2: "Last leave: group Empty, generation kept, offsets kept"."""
    first, second = member(), member()
    stabilise(first)
    assert first.leave() == ErrorCode.NONE
    # Emptying counts as a generation of its own.
    assert second.join().generation_id == first.generation + 2


def test_a_pending_member_may_leave(member: NewMember) -> None:
    """B.2: "Pending (KIP-394) members may leave"."""
    pending = member()
    pending.get_id()
    assert pending.leave() == ErrorCode.NONE
    assert pending.join_once().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_twenty_members_form_one_generation(member: NewMember) -> None:
    members = [member() for _ in range(20)]
    stabilise(*members)
    assert {each.generation for each in members} == {2}


def test_a_group_of_another_type_is_not_for_consumers(member: NewMember) -> None:
    """Connect and Schema Registry form groups too; the broker does not read what they say."""
    worker = member(protocols=("compatible",), metadata=bytes(range(256)))
    worker.protocol_type = "connect"
    answer = worker.join()
    assert (answer.protocol_type, answer.protocol_name) == ("connect", "compatible")
    assert answer.members[0].metadata == bytes(range(256))


def test_a_join_that_names_no_type_at_all_is_answered(wire: WireClient, group: str) -> None:
    answer = wire.ask(
        JoinGroupRequest(group_id=group, session_timeout_ms=10_000), 9, JoinGroupResponse
    )
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
