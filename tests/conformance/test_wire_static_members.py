"""Static members of classic groups (KIP-345, KIP-814): they come back to what they had."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from tests.conformance.dialogue import DialogueCluster, unique
from tests.conformance.members import RawMember, stabilise, subscription, wait_for_coordinator
from tests.support.waiting import wait_until

NewMember = Callable[..., RawMember]


@pytest.fixture
def member(cluster: DialogueCluster, group: str) -> Iterator[NewMember]:
    """Makes members of the test's group, each with its own connection."""
    wait_for_coordinator(cluster, group)
    with ExitStack() as connections:
        yield lambda **options: RawMember(
            connections.enter_context(cluster.connect()), group, **options
        )


@pytest.mark.parametrize("version", range(5, 10))
def test_a_static_member_joins_at_once(member: NewMember, version: int) -> None:
    """B.2: "v4+, empty member id, no instance id [...] MEMBER_ID_REQUIRED": with one it is not."""
    static = member(instance_id="one", version=version)
    answer = static.join_once()
    assert answer.error_code == ErrorCode.NONE
    assert [(each.member_id, each.group_instance_id) for each in answer.members] == [
        (static.id, "one")
    ]


@pytest.mark.parametrize("version", range(5, 10))
def test_a_follower_that_restarts_disturbs_nobody(member: NewMember, version: int) -> None:
    """B.2: "instance id known with empty member id = restart: replace, new member id [...]. In
    Stable with unchanged selected protocol: answer at once with the current generation, no
    rebalance".
    """
    leader, follower = member(instance_id="leader"), member(instance_id="follower")
    stabilise(leader, follower)
    restarted = member(instance_id="follower", version=version)
    answer = restarted.join_once()
    assert answer.error_code == ErrorCode.NONE
    assert answer.generation_id == leader.generation
    assert answer.leader == leader.id
    assert answer.members == []
    assert not answer.skip_assignment
    assert restarted.id != follower.id
    assert restarted.sync().assignment == follower.id.encode()
    assert leader.heartbeat() == restarted.heartbeat() == ErrorCode.NONE


def test_who_was_replaced_is_fenced(member: NewMember, topic: str) -> None:
    """B.2: "old one FENCED_INSTANCE_ID (82) on any later call"."""
    old = member(instance_id="one")
    stabilise(old)
    new = member(instance_id="one")
    assert new.join_once().error_code == ErrorCode.NONE
    assert old.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    assert old.sync().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert old.commit(topic, 1) == ErrorCode.FENCED_INSTANCE_ID
    assert old.join_once().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert old.leave() == ErrorCode.FENCED_INSTANCE_ID
    assert new.heartbeat() == ErrorCode.NONE


def rejoined_leader(
    member: NewMember, version: int
) -> tuple[RawMember, RawMember, JoinGroupResponse]:
    """A leader before and after its restart, beside a follower, and the answer it got."""
    leader, follower = member(instance_id="leader"), member(instance_id="follower")
    stabilise(leader, follower)
    restarted = member(instance_id="leader", version=version)
    answer = restarted.join_once()
    assert answer.error_code == ErrorCode.NONE
    assert answer.generation_id == leader.generation
    assert follower.heartbeat() == ErrorCode.NONE
    return leader, restarted, answer


@pytest.mark.parametrize("version", range(5, 9))
def test_a_leader_that_restarts_is_kept_from_assigning(member: NewMember, version: int) -> None:
    """B.2: "v<9 must be told the OLD leader id so that it does not assign"."""
    leader, restarted, answer = rejoined_leader(member, version)
    assert (answer.leader, answer.members) == (leader.id, [])
    assert restarted.sync().assignment == leader.id.encode()


def test_a_new_leader_is_told_to_skip_the_assignment(member: NewMember) -> None:
    """B.2: "v9 sets SkipAssignment=true (KIP-814) and still lists members"."""
    leader, restarted, answer = rejoined_leader(member, 9)
    assert answer.leader == restarted.id
    assert answer.skip_assignment
    assert {each.group_instance_id for each in answer.members} == {"leader", "follower"}
    assert restarted.sync().assignment == leader.id.encode()


def test_a_restart_with_other_protocols_rebalances(member: NewMember) -> None:
    """B.2: no rebalance only "with unchanged selected protocol"."""
    leader, follower = member(instance_id="leader"), member(instance_id="follower")
    leader.protocols = follower.protocols = ("range", "sticky")
    stabilise(leader, follower)
    restarted = member(instance_id="follower", protocols=("sticky",))
    restarted.post_join()
    wait_until(
        lambda: leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, what="the rebalance begins"
    )
    assert leader.join().protocol_name == "sticky"
    assert restarted.joined().generation_id == leader.generation


def test_a_restart_with_another_subscription_is_not_noticed(member: NewMember) -> None:
    """B.2: only the protocol counts; the leader sees the new metadata at the next rebalance."""
    leader, follower = member(instance_id="leader"), member(instance_id="follower")
    stabilise(leader, follower)
    restarted = member(instance_id="follower", metadata=subscription("another"))
    answer = restarted.join_once()
    assert answer.generation_id == leader.generation
    assert leader.heartbeat() == ErrorCode.NONE


@pytest.mark.parametrize("version", range(3, 6))
def test_an_administrator_may_remove_a_static_member(member: NewMember, version: int) -> None:
    """B.2: "member_id "" + instance id = admin removal"."""
    static, other = member(instance_id="one"), member(instance_id="two")
    stabilise(static, other)
    identities = [
        MemberIdentity(member_id="", group_instance_id="two"),
        MemberIdentity(member_id="", group_instance_id=unique("nobody")),
    ]
    request = LeaveGroupRequest(group_id=static.group, members=identities)
    answer = static.wire.ask(request, version, LeaveGroupResponse)
    assert answer.error_code == ErrorCode.NONE
    assert [each.error_code for each in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert static.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert other.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
