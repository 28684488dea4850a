"""The core as a whole, held to the sentences of the paper and of the thesis.

"Paper" is Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm (extended
version); "thesis" is Ongaro, Consensus: Bridging Theory and Practice.
"""

from cluster.raft.configuration import configuration_of
from cluster.raft.messages import VoteRequest, VoteResponse
from cluster.raft.ready import HardState, Role
from tests.cluster.raft.quorum import ELECTION_MS, Member, Quorum, only

THREE = configuration_of([1, 2, 3])


def test_a_quorum_of_one_elects_itself_at_once_and_commits_when_its_disk_has_it() -> None:
    alone = Member(1, bootstrap=configuration_of([1]))
    alone.elapse(1)
    assert alone.role is Role.LEADER
    assert alone.hard_state.term == 1
    alone.is_disk_held = True
    alone.propose(b"x")
    assert alone.commands == []
    alone.sync()
    assert alone.commands == [b"x"]


def test_a_vote_is_on_the_disk_before_it_is_given() -> None:
    """Figure 2, persistent state: "Updated on stable storage before responding to RPCs"."""
    member = Member(2, bootstrap=THREE)
    member.is_disk_held = True
    assert member.hear(VoteRequest(1, 2, 4, 0, 0)) == []
    assert member.hard_state == HardState()
    assert member.sync() == [VoteResponse(2, 1, 4, True)]
    assert (member.hard_state.term, member.hard_state.vote) == (4, 1)


def test_three_members_elect_one_leader_and_agree() -> None:
    quorum = Quorum(3)
    quorum.elapse(2 * ELECTION_MS)
    assert quorum.leaders == [1]
    quorum[1].propose(b"x")
    quorum.deliver()
    assert [member.commands for member in quorum.members.values()] == [[b"x"]] * 3


def test_a_silent_leader_is_replaced() -> None:
    quorum = Quorum(3)
    quorum.elect(1)
    quorum.isolate(1)
    quorum.elapse(3 * ELECTION_MS)
    assert quorum.leaders == [2]
    assert only(VoteRequest, quorum[3].take_sent()) == []
