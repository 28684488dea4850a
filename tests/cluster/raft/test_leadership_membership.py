"""Changes of the configuration: when they are allowed, who may campaign, and their effects."""

from odradek.cluster.raft.configuration import (
    AddVoter,
    Configuration,
    ProposalRefusal,
    RemoveVoter,
    UpdateVoter,
    Voter,
    configuration_of,
    encode_configuration,
)
from odradek.cluster.raft.leadership import Leadership
from odradek.cluster.raft.log import RaftLog
from odradek.cluster.raft.messages import (
    ALL_MEMBERS,
    AppendAccepted,
    Entry,
    FollowRequest,
    LeaderHint,
)
from odradek.cluster.raft.ready import Proposal, Role
from odradek.cluster.raft.settings import RaftSettings
from tests.cluster.raft.quorum import (
    ELECTION_MS,
    HEARTBEAT_MS,
    LocalQuorum,
    QuorumMember,
    follower,
    heartbeat,
)

TERM = 3
SETTINGS = RaftSettings()


def leader_of(log: RaftLog) -> Leadership:
    return Leadership(1, TERM, log, SETTINGS, 0)


def log_of(*entries: Entry, committed_index: int) -> RaftLog:
    bootstrap = configuration_of([1, 2, 3])
    return RaftLog(entries, bootstrap=bootstrap, committed_index=committed_index)


def test_a_change_waits_until_the_one_before_is_committed() -> None:
    step = Entry(2, TERM, encode_configuration(configuration_of([1, 2])))
    log = log_of(Entry(1, TERM, b""), step, committed_index=1)
    change = RemoveVoter(2)
    refusal = leader_of(log).next_configuration(change, 0)
    assert refusal is ProposalRefusal.CHANGE_IN_PROGRESS
    log.commit_to(2)
    assert leader_of(log).next_configuration(change, 0) == configuration_of([1])


def test_a_change_waits_for_an_entry_of_the_leaders_own_term() -> None:
    log = log_of(Entry(1, 2, b"x"), Entry(2, TERM, b""), committed_index=1)
    change = RemoveVoter(2)
    refusal = leader_of(log).next_configuration(change, 0)
    assert refusal is ProposalRefusal.TERM_NOT_COMMITTED
    log.commit_to(2)
    assert leader_of(log).next_configuration(change, 0) == configuration_of([1, 3])


def test_an_observer_that_has_not_caught_up_cannot_become_a_voter() -> None:
    """Thesis 4.2.1: a new server is sent entries first, and meanwhile "it is not yet counted
    towards majorities for voting or commitment purposes".
    """
    log = log_of(Entry(1, TERM, b""), committed_index=1)
    leadership = leader_of(log)
    change = AddVoter(Voter(4))
    assert leadership.next_configuration(change, 0) is ProposalRefusal.NOT_CAUGHT_UP
    leadership.add_observer(4, 0, 0)
    assert leadership.next_configuration(change, 0) is ProposalRefusal.NOT_CAUGHT_UP
    leadership.handle_response(AppendAccepted(4, 1, TERM, 1), 10)
    after = leadership.next_configuration(change, 20)
    assert isinstance(after, Configuration)
    assert after.voter_ids == (1, 2, 3, 4)
    late_ms = 20 + SETTINGS.election_timeout_ms
    assert leadership.next_configuration(change, late_ms) is ProposalRefusal.NOT_CAUGHT_UP


def test_an_invalid_change_is_refused() -> None:
    log = log_of(Entry(1, TERM, b""), committed_index=1)
    refusal = leader_of(log).next_configuration(AddVoter(Voter(2)), 0)
    assert refusal is ProposalRefusal.ALREADY_VOTER


def test_a_removed_voter_may_campaign_until_its_removal_is_committed() -> None:
    """Thesis 4.2.2: "a server that is not part of its own latest configuration should still start
    new elections, as it might still be needed until the C_new entry is committed".
    """
    step = Entry(2, TERM, encode_configuration(configuration_of([2, 3])))
    log = log_of(Entry(1, TERM, b""), step, committed_index=1)
    assert log.can_campaign(1)
    assert not log.can_campaign(4)
    log.commit_to(2)
    assert not log.can_campaign(1)
    assert log.can_campaign(2)


# -- thesis 4: membership --------------------------------------------------------------------------


def test_an_observer_that_has_caught_up_becomes_a_voter() -> None:
    quorum = LocalQuorum(3)
    one = quorum.elect(1)
    one.propose(b"before")
    four = quorum.join(4)
    change = AddVoter(Voter(4, b"there"))
    assert one.node.propose_membership_change(change, one.now_ms) is ProposalRefusal.NOT_CAUGHT_UP
    quorum.elapse(3 * HEARTBEAT_MS)
    assert four.commands == [b"before"]
    assert not four.node.configuration.is_voter(4)
    assert isinstance(one.node.propose_membership_change(change, one.now_ms), Proposal)
    again = one.node.propose_membership_change(RemoveVoter(2), one.now_ms)
    assert again is ProposalRefusal.CHANGE_IN_PROGRESS
    one.settle()
    quorum.deliver()
    assert {member.node.configuration.voter_ids for member in quorum.members.values()} == {
        (1, 2, 3, 4)
    }
    quorum.cut([1, 4], [2, 3])
    one.propose(b"two of four are not enough")
    quorum.deliver()
    assert four.commands == [b"before"]


def test_an_observer_never_campaigns_and_gets_a_hint_to_the_leader() -> None:
    quorum = LocalQuorum(3)
    quorum.elect(1)
    four = quorum.join(4)
    quorum.cut([4], [1])
    quorum.elapse(3 * ELECTION_MS)
    assert (four.role, four.node.term) == (Role.FOLLOWER, 0)
    member = follower()
    member.hear(heartbeat(1))
    assert member.hear(FollowRequest(4, ALL_MEMBERS, 0, 0)) == [LeaderHint(2, 4, 1, 1)]


def test_a_hint_is_followed_once() -> None:
    newcomer = QuorumMember(4, bootstrap=configuration_of([]))
    asked = newcomer.elapse(2 * HEARTBEAT_MS)
    assert asked == [FollowRequest(4, ALL_MEMBERS, 0, 0)]
    assert newcomer.hear(LeaderHint(2, 4, 1, 1)) == [FollowRequest(4, 1, 0, 0)]
    assert newcomer.hear(LeaderHint(3, 4, 1, 2)) == []


def test_a_leader_removes_itself_and_leads_until_that_is_committed() -> None:
    """Thesis 4.2.2: "a leader that is removed from the configuration steps down once the C_new
    entry is committed".
    """
    quorum = LocalQuorum(3)
    one = quorum.elect(1)
    assert isinstance(one.node.propose_membership_change(RemoveVoter(1), one.now_ms), Proposal)
    assert quorum.leaders == [1]
    one.settle()
    quorum.deliver()
    assert one.role is Role.FOLLOWER
    assert len(quorum.leaders) == 1, "it has asked a successor, nobody had to wait for a timeout"
    quorum.elapse(10 * ELECTION_MS)
    assert 1 not in quorum.leaders
    assert one.node.configuration.voter_ids == (2, 3)


def test_a_leader_that_removes_itself_does_not_count_itself() -> None:
    quorum = LocalQuorum(3)
    one = quorum.elect(1)
    quorum.cut([1, 2], [3])
    one.node.propose_membership_change(RemoveVoter(1), one.now_ms)
    one.settle()
    quorum.deliver()
    assert one.role is Role.LEADER, "of 2 and 3 only one has it"
    assert one.node.log.committed_index < one.node.log.last_index


def test_no_change_before_an_entry_of_the_term_is_committed() -> None:
    quorum = LocalQuorum(3)
    quorum.elect(1)
    quorum.isolate(1)
    quorum.drops = lambda message: isinstance(message, AppendAccepted)
    quorum.elapse(ELECTION_MS + HEARTBEAT_MS)
    two = quorum[2].node
    assert two.role is Role.LEADER
    change = RemoveVoter(3)
    assert (
        two.propose_membership_change(change, quorum.now_ms) is ProposalRefusal.TERM_NOT_COMMITTED
    )
    quorum.drops = lambda message: False
    quorum.elapse(2 * HEARTBEAT_MS)
    assert isinstance(two.propose_membership_change(change, quorum.now_ms), Proposal)


def test_a_member_that_was_removed_while_it_was_cut_off_learns_of_it() -> None:
    quorum = LocalQuorum(3)
    one = quorum.elect(1)
    quorum.isolate(3)
    one.node.propose_membership_change(RemoveVoter(3), one.now_ms)
    one.settle()
    quorum.elapse(12 * ELECTION_MS)
    assert quorum[3].node.configuration.is_voter(3)
    quorum.heal()
    quorum.elapse(3 * ELECTION_MS)
    assert not quorum[3].node.configuration.is_voter(3)
    assert quorum.leaders == [1]


def test_a_voters_context_can_be_changed() -> None:
    quorum = LocalQuorum(3)
    one = quorum.elect(1)
    one.node.propose_membership_change(UpdateVoter(Voter(2, b"moved")), one.now_ms)
    one.settle()
    quorum.deliver()
    assert quorum[3].node.configuration.find(2) == Voter(2, b"moved")
