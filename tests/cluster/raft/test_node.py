"""The whole core, against the paper and the thesis.

"Paper" is Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm (extended
version); numbers without a word are its sections. "Thesis" is Ongaro, Consensus: Bridging Theory
and Practice.
"""

import pytest

from odradek.cluster.raft.configuration import (
    ProposalRefusal,
    RemoveVoter,
    configuration_of,
    encode_configuration,
)
from odradek.cluster.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Entry,
    Message,
    SnapshotChunk,
    SnapshotMetadata,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from odradek.cluster.raft.ready import HardState, Proposal, Ready, Role, SoftState
from odradek.cluster.raft.settings import RaftSettings
from tests.cluster.raft.quorum import (
    ELECTION_MS,
    HEARTBEAT_MS,
    THREE,
    LocalQuorum,
    QuorumMember,
    candidate,
    follower,
    heartbeat,
    leader,
    only,
)

SMALL_CHUNKS = RaftSettings(snapshot_chunk_bytes=4)

# -- figure 2: rules for all servers ---------------------------------------------------------------


def test_a_greater_term_makes_a_member_a_follower() -> None:
    """Figure 2: "If RPC request or response contains term T > currentTerm: set currentTerm = T,
    convert to follower".
    """
    for member, message in (
        (leader(1), AppendRejected(1, 2, 9, 0, 0, 0)),
        (leader(1), heartbeat(9)),
        (candidate(1), VoteResponse(1, 2, 9, False)),
        (follower(1), VoteRequest(1, 2, 9, 0, 0)),
    ):
        member.hear(message)
        assert (member.role, member.node.term, member.node.vote) == (Role.FOLLOWER, 9, None)
        assert member.hard_state.term == 9


def test_a_request_of_a_smaller_term_is_rejected_with_the_current_term() -> None:
    """Figure 2, both receivers: "Reply false if term < currentTerm"."""
    member = follower(1, 5)
    assert member.hear(heartbeat(4)) == [AppendRejected(2, 1, 5, 0, 0, 0)]
    assert member.hear(VoteRequest(1, 2, 4, 9, 4)) == [VoteResponse(2, 1, 5, False)]
    assert member.hear(AppendAccepted(1, 2, 4, 2), TimeoutNow(1, 2, 4)) == []


def test_committed_entries_are_applied_in_order_and_once() -> None:
    """Figure 2: "If commitIndex > lastApplied: increment lastApplied, apply log[lastApplied]"."""
    member = follower(1, 1, 1)
    member.hear(AppendRequest(1, 2, 1, 3, 1, (), 2))
    member.hear(AppendRequest(1, 2, 1, 3, 1, (), 2))
    member.hear(AppendRequest(1, 2, 1, 3, 1, (), 3))
    assert [entry.index for entry in member.applied] == [1, 2, 3]


# -- 5.4: safety -----------------------------------------------------------------------------------


def test_no_vote_for_a_log_that_is_behind() -> None:
    """5.4.1: "the voter denies its vote if its own log is more up-to-date than that of the
    candidate".
    """
    for last_index, last_term, is_granted in (
        (9, 2, False),
        (2, 3, False),
        (3, 3, True),
        (1, 4, True),
    ):
        member = follower(1, 2, 3)
        answer = member.hear(VoteRequest(1, 2, 5, last_index, last_term))
        assert answer == [VoteResponse(2, 1, 5, is_granted)]


def test_only_an_entry_of_its_own_term_is_committed_by_counting() -> None:
    """5.4.2: "Raft never commits log entries from previous terms by counting replicas. Only log
    entries from the leader's current term are committed by counting replicas".
    """
    member = leader(1, 1)
    member.hear(AppendAccepted(1, 2, 2, 2))
    assert member.node.log.committed_index == 0
    member.hear(AppendAccepted(1, 2, 2, 3))
    assert member.node.log.committed_index == 3


def test_figure_8_an_old_entry_on_a_majority_can_be_overwritten_until_a_new_one_commits_it() -> (
    None
):
    """5.4.2, figure 8: S1 leads again and brings its entry of term 2 to a majority, (c); as long as
    none of its own term is there, S5 may win and overwrite it, (d).
    """
    old = [Entry(1, 1, b"1"), Entry(2, 2, b"2")]
    logs = {1: old, 2: old, 3: old[:1], 4: old[:1], 5: [Entry(1, 1, b"1"), Entry(2, 3, b"3")]}
    quorum = LocalQuorum(5, settings=RaftSettings(append_bytes_max=1), logs=logs, term=3)
    quorum.isolate(5)
    quorum.drops = lambda message: (
        isinstance(message, AppendRequest) and any(entry.index > 2 for entry in message.entries)
    )
    one = quorum.elect(1)
    assert one.node.term == 4
    stored = {own_id: member.node.log.term_at(2) for own_id, member in quorum.members.items()}
    assert stored == {1: 2, 2: 2, 3: 2, 4: 2, 5: 3}, "the entry of term 2 is on a majority"
    assert one.node.log.committed_index < 2, "and not committed"
    quorum.heal()
    quorum.isolate(1)
    five = quorum.elect(5)
    stored = {own_id: member.node.log.term_at(2) for own_id, member in quorum.members.items()}
    assert stored == {1: 2, 2: 3, 3: 3, 4: 3, 5: 3}, "it has been overwritten"
    assert five.node.log.committed_index >= 2


def test_acknowledged_entries_survive_the_loss_of_the_leader() -> None:
    """Figure 3, leader completeness: a committed entry "will be present in the logs of the leaders
    for all higher-numbered terms".
    """
    quorum = LocalQuorum(3)
    quorum.elect(1)
    quorum.cut([1], [3])
    quorum[1].propose(b"x")
    quorum.deliver()
    assert quorum[1].commands == [b"x"]
    quorum.heal()
    quorum.isolate(1)
    quorum.elapse(4 * ELECTION_MS)
    assert quorum.leaders == [2], "member 3 does not have it"
    assert quorum[3].commands == [b"x"]


# -- 5.3: replication ------------------------------------------------------------------------------


def test_two_of_three_members_commit() -> None:
    quorum = LocalQuorum(3)
    quorum.elect(1)
    quorum.isolate(3)
    for number in range(5):
        quorum[1].propose(b"%d" % number)
    quorum.deliver()
    assert quorum[1].commands == quorum[2].commands == [b"0", b"1", b"2", b"3", b"4"]
    quorum.heal()
    quorum.elapse(2 * HEARTBEAT_MS)
    assert quorum[3].commands == quorum[1].commands


def test_entries_are_acknowledged_when_they_are_on_the_followers_disk() -> None:
    member = follower(1)
    member.hear(heartbeat(1))
    member.is_disk_held = True
    request = AppendRequest(1, 2, 1, 1, 1, (Entry(2, 1, b"y"),), 0)
    assert member.hear(request) == []
    assert member.hear(heartbeat(1)) == [AppendAccepted(2, 1, 1, 0)], "that is true already"
    assert member.sync() == [AppendAccepted(2, 1, 1, 2)]


def test_a_leader_sends_entries_while_its_own_disk_is_busy_but_counts_itself_afterwards() -> None:
    """Thesis 10.2.1: "the leader can write to its disk in parallel with replicating to the
    followers and them writing to their disks".
    """
    member = leader(1)
    member.hear(AppendAccepted(1, 2, 2, 2))
    member.is_disk_held = True
    member.propose(b"y")
    assert [len(m.entries) for m in only(AppendRequest, member.take_sent()) if m.to == 1] == [1]
    member.hear(AppendAccepted(1, 2, 2, 3))
    assert member.node.log.committed_index == 2
    member.sync()
    assert member.node.log.committed_index == 3
    assert member.commands[-1] == b"y"


def test_a_lost_proposal_is_recognised_by_the_term_of_the_entry_at_its_index() -> None:
    quorum = LocalQuorum(3)
    quorum.elect(1)
    quorum.isolate(1)
    lost = quorum[1].propose(b"lost")
    quorum.elapse(4 * ELECTION_MS)
    assert quorum.leaders == [2]
    quorum.heal()
    quorum.elapse(2 * HEARTBEAT_MS)
    entry = next(entry for entry in quorum[1].applied if entry.index == lost.index)
    assert entry.term != lost.term
    assert quorum[1].commands == []


def test_uncommitted_proposals_are_bounded() -> None:
    quorum = LocalQuorum(3, settings=RaftSettings(uncommitted_bytes_max=200))
    quorum.elect(1)
    quorum.isolate(1)
    answers = [quorum[1].node.propose(b"x" * 50) for _ in range(4)]
    assert [type(answer) for answer in answers[:3]] == [Proposal] * 3
    assert answers[3] is ProposalRefusal.TOO_MUCH_UNCOMMITTED
    quorum.heal()
    quorum[1].settle()
    quorum.elapse(3 * HEARTBEAT_MS)
    assert isinstance(quorum[1].node.propose(b"x"), Proposal)


def test_only_the_leader_accepts_proposals() -> None:
    member = follower()
    assert member.node.propose(b"x") is ProposalRefusal.NOT_LEADER
    assert member.node.transfer_leadership(1, 0) is ProposalRefusal.NOT_LEADER
    assert member.node.resign(0) is ProposalRefusal.NOT_LEADER
    assert member.node.propose_membership_change(RemoveVoter(1), 0) is ProposalRefusal.NOT_LEADER


def test_a_proposal_that_looks_like_an_entry_of_the_core_is_an_assertion_error() -> None:
    member = leader()
    for data in (b"", b"\xc1anything"):
        with pytest.raises(AssertionError):
            member.node.propose(data)


# -- 8: the first entry of a term ------------------------------------------------------------------


def test_a_leader_begins_its_term_with_a_no_op() -> None:
    """8: "Raft handles this by having each leader commit a blank no-op entry into the log at the
    start of its term".
    """
    quorum = LocalQuorum(3)
    quorum.elect(1)
    quorum.isolate(1)
    quorum.elapse(4 * ELECTION_MS)
    assert quorum[2].applied[-1] == Entry(2, quorum[2].node.term, b"")
    assert not quorum[2].applied[-1].is_command


def test_the_first_leader_records_the_bootstrap_voters() -> None:
    quorum = LocalQuorum(3)
    quorum.elect(1)
    assert quorum[2].applied[0].data == encode_configuration(THREE)


# -- a quorum of one -------------------------------------------------------------------------------


def test_a_quorum_of_one_elects_itself_at_once_and_commits_when_its_disk_has_it() -> None:
    alone = QuorumMember(1, bootstrap=configuration_of([1]))
    assert alone.node.next_deadline_ms() <= alone.now_ms
    alone.elapse(1)
    assert alone.role is Role.LEADER
    assert alone.hard_state.term == 1
    alone.is_disk_held = True
    alone.propose(b"x")
    assert alone.commands == []
    alone.sync()
    assert alone.commands == [b"x"]


def test_a_quorum_of_one_does_not_lead_before_its_vote_is_on_the_disk() -> None:
    alone = QuorumMember(1, bootstrap=configuration_of([1]))
    alone.is_disk_held = True
    alone.elapse(1)
    assert alone.node.leadership is None
    assert alone.node.next_deadline_ms() > alone.now_ms, "the driver must not spin meanwhile"
    alone.elapse(5 * ELECTION_MS)
    assert alone.node.term == 1
    alone.sync()
    assert alone.role is Role.LEADER


# -- thesis 3.10: transfer -------------------------------------------------------------------------


def test_a_transfer_of_leadership_needs_no_timeout() -> None:
    """Thesis 3.10: "This request has the same effect as the target server's election timer
    firing".
    """
    quorum = LocalQuorum(3)
    one = quorum.elect(1)
    term = one.node.term
    assert one.node.transfer_leadership(3, one.now_ms) is None
    assert one.node.propose(b"x") is ProposalRefusal.TRANSFER_IN_PROGRESS
    one.settle()
    quorum.deliver()
    assert quorum.leaders == [3]
    assert quorum[3].node.term == term + 1
    assert quorum[2].node.leader_id == 3


def test_a_failed_transfer_ends() -> None:
    quorum = LocalQuorum(3)
    one = quorum.elect(1)
    quorum.isolate(3)
    one.node.transfer_leadership(3, one.now_ms)
    one.settle()
    quorum.elapse(ELECTION_MS + HEARTBEAT_MS)
    assert quorum.leaders == [1]
    assert isinstance(one.node.propose(b"x"), Proposal)


def test_leadership_is_transferred_only_to_voters() -> None:
    member = leader()
    assert member.node.transfer_leadership(2, 0) is ProposalRefusal.NOT_A_VOTER
    assert member.node.transfer_leadership(9, 0) is ProposalRefusal.NOT_A_VOTER


def test_a_leader_that_resigns_is_replaced_at_once() -> None:
    quorum = LocalQuorum(3)
    one = quorum.elect(1)
    one.node.resign(one.now_ms)
    one.settle()
    quorum.deliver()
    assert len(quorum.leaders) == 1
    assert 1 not in quorum.leaders


def test_timeout_now_is_accepted_only_from_the_leader() -> None:
    member = follower()
    member.hear(heartbeat(1))
    assert member.hear(TimeoutNow(3, 2, 1)) == []
    said = member.hear(TimeoutNow(1, 2, 1))
    assert [(m.term, m.is_transfer) for m in only(VoteRequest, said)] == [(2, True), (2, True)]


# -- 7: snapshots ----------------------------------------------------------------------------------


def test_a_follower_far_behind_gets_the_snapshot_and_then_entries() -> None:
    """7: "the leader must occasionally send snapshots to followers that lag behind"."""
    quorum = LocalQuorum(3, settings=SMALL_CHUNKS)
    one = quorum.elect(1)
    quorum.isolate(3)
    for number in range(10):
        one.propose(b"%d" % number)
        quorum.deliver()
    mark = one.snapshot_now(b"ten numbers")
    one.propose(b"after")
    quorum.deliver()
    quorum.heal()
    quorum.elapse(3 * HEARTBEAT_MS)
    assert quorum[3].installed == [mark]
    assert quorum[3].snapshot_content == b"ten numbers"
    assert quorum[3].commands == [b"after"]


def test_a_transfer_of_a_snapshot_survives_losses_and_is_resumed() -> None:
    quorum = LocalQuorum(3, settings=SMALL_CHUNKS)
    one = quorum.elect(1)
    quorum.isolate(3)
    one.propose(b"x")
    quorum.deliver()
    one.snapshot_now(b"0123456789")
    quorum.heal()
    offsets: list[int] = []

    def lose_the_second_chunk_once(message: Message) -> bool:
        if isinstance(message, SnapshotChunk):
            offsets.append(message.offset)
        return isinstance(message, SnapshotChunk) and offsets == [0, 4]

    quorum.drops = lose_the_second_chunk_once
    quorum.elapse(4 * ELECTION_MS)
    assert quorum[3].snapshot_content == b"0123456789"
    assert offsets == [0, 4, 4, 8], "it went on where it had stopped"
    assert quorum.leaders == [1]


def test_a_corrupt_snapshot_is_received_again() -> None:
    mark = SnapshotMetadata(9, 1, 4, 77, THREE)
    member = follower()
    chunk = SnapshotChunk(1, 2, 1, mark, 0, 4, b"abcd")
    member.node.step(heartbeat(1), member.now_ms)
    member.settle()
    member.take_sent()
    member.is_disk_held = True
    member.hear(chunk)
    assert member.node.role is Role.FOLLOWER
    member.node.reject_snapshot()
    ready = member.syncing
    assert ready is not None
    member.node.advance(ready)
    assert member.node.log.last_index == 0
    member.is_disk_held = False
    assert member.hear(chunk) == [AppendAccepted(2, 1, 1, 9)]


def test_a_member_restarts_from_its_snapshot() -> None:
    quorum = LocalQuorum(3)
    one = quorum.elect(1)
    for number in range(6):
        one.propose(b"%d" % number)
    quorum.deliver()
    one.snapshot_now(b"state", first_index=4)
    one.propose(b"after")
    quorum.deliver()
    one.applied = []
    one.start()
    assert one.node.log.first_index == 4
    quorum.elapse(3 * ELECTION_MS)
    assert one.commands == [b"after"]


def test_no_snapshot_is_taken_while_one_is_received_or_before_the_voters_are_known() -> None:
    assert follower().node.can_take_snapshot
    assert not QuorumMember(4, bootstrap=configuration_of([])).node.can_take_snapshot
    member = follower()
    mark = SnapshotMetadata(9, 1, 10, 77, THREE)
    member.hear(SnapshotChunk(1, 2, 1, mark, 0, 4, b"abcd"))
    assert not member.node.can_take_snapshot


# -- the contract of Ready -------------------------------------------------------------------------


def test_one_ready_is_persisted_at_a_time_and_what_arrives_meanwhile_shares_the_next() -> None:
    member = follower(1)
    member.hear(heartbeat(1))
    member.is_disk_held = True
    member.hear(AppendRequest(1, 2, 1, 1, 1, (Entry(2, 1, b"a"),), 0))
    first = member.syncing
    member.hear(AppendRequest(1, 2, 1, 2, 1, (Entry(3, 1, b"b"),), 0))
    member.hear(AppendRequest(1, 2, 1, 3, 1, (Entry(4, 1, b"c"),), 0))
    assert member.syncing is first
    said = member.sync()
    assert said == [AppendAccepted(2, 1, 1, 2)]
    assert member.syncing is not None
    assert [entry.index for entry in member.syncing.entries] == [3, 4]
    assert member.sync() == [AppendAccepted(2, 1, 1, 3), AppendAccepted(2, 1, 1, 4)]


def test_a_response_of_a_term_that_ended_during_a_sync_is_not_sent() -> None:
    member = follower(1)
    member.hear(heartbeat(1))
    member.is_disk_held = True
    member.hear(AppendRequest(1, 2, 1, 1, 1, (Entry(2, 1, b"a"),), 0))
    member.hear(AppendRequest(1, 2, 1, 2, 1, (Entry(3, 1, b"b"),), 0))
    member.hear(AppendRequest(3, 2, 2, 1, 1, (Entry(2, 2, b"c"),), 0))
    member.sync()
    assert member.sync() == [AppendAccepted(2, 3, 2, 2)]
    assert [entry.data for entry in member.entries] == [b"x", b"c"]


def test_a_change_of_the_soft_state_is_reported_once() -> None:
    member = QuorumMember(1, bootstrap=configuration_of([1]))
    member.is_disk_held = True
    member.node.tick(member.now_ms)
    told = []
    while (ready := member.node.ready()) is not None:
        told.append(ready.soft_state)
        if ready.must_persist:
            member.node.advance(ready)
    assert [soft_state for soft_state in told if soft_state] == [
        SoftState(Role.CANDIDATE, 1, None),
        SoftState(Role.LEADER, 1, 1),
    ]


def test_advancing_another_ready_is_an_assertion_error() -> None:
    member = follower()
    with pytest.raises(AssertionError):
        member.node.advance(Ready(hard_state=HardState(9)))


def test_a_clock_that_goes_back_is_ignored() -> None:
    member = follower()
    member.hear(heartbeat(1))
    before = member.node.next_deadline_ms()
    member.node.tick(0)
    member.node.step(heartbeat(1), 0)
    assert member.node.next_deadline_ms() == before
    assert member.role is Role.FOLLOWER
