"""DescribeQuorum: the state of the quorum, from its leader, at any node."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from odradek.node.bus.messages import QuorumDescribed
from odradek.node.bus.peer_messages import (
    PEER_VERSION,
    ControlMessage,
    PeerHeader,
    QuorumStateRequest,
    QuorumStateResponse,
)
from odradek.node.controller.quorum_view import ANSWER_TIMEOUT_MS, QuorumView
from tests.support.raft_harness import RaftHarness, RaftMember

WALL_MS = 1_700_000_000_000


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RaftHarness]:
    harness = RaftHarness(tmp_path)
    yield harness
    harness.close()


class View:
    """The QuorumView of one member, and its responses."""

    def __init__(self, member: RaftMember) -> None:
        self.sent: list[tuple[int, ControlMessage]] = []
        self.told: list[QuorumDescribed] = []
        self.view = QuorumView(
            member.driver,
            send=lambda to, message: self.sent.append((to, message)),
            respond=lambda _identity, answer: self.told.append(answer),
            wall_ms=lambda: WALL_MS,
            headers=self,
        )

    def header_of(self, member: int) -> PeerHeader | None:
        return PeerHeader(PEER_VERSION, "c", member, str(UUID(int=7)), 1, 8, member, "a", 9192)


def test_the_leader_describes_all_replicas(harness: RaftHarness) -> None:
    leader = harness.elect()
    harness.elapse(200)
    late = next(n for n in harness.members if n != leader.node_id)
    harness.away = {late}
    leader.driver.propose(b"a")
    harness.settle()
    view = View(leader)
    view.view.describe(b"router", 4, harness.now_ms)
    view.view.settle(harness.now_ms)
    (answer,) = view.told
    state = answer.state
    assert answer.request_id == 4
    assert state is not None
    assert (state.leader_id, state.term) == (leader.node_id, leader.driver.node.term)
    ends = {voter.node_id: voter.log_end_offset for voter in state.voters}
    assert sorted(ends) == [0, 1, 2]
    assert ends[leader.node_id] == state.high_watermark == ends[late] + 1
    caught_up = {v.node_id: v.last_caught_up_ms for v in state.voters}
    assert caught_up[late] == -1
    assert caught_up[leader.node_id] == WALL_MS


def test_another_member_requests_the_state_from_the_leader(harness: RaftHarness) -> None:
    leader = harness.elect()
    harness.elapse(200)
    asker = next(m for m in harness.members.values() if m is not leader)
    here, there = View(asker), View(leader)
    here.view.describe(b"router", 4, 0)
    here.view.settle(0)
    ((to, question),) = here.sent
    assert to == leader.node_id
    assert isinstance(question, QuorumStateRequest)
    there.view.on_request(asker.node_id, question)
    ((back, answer),) = there.sent
    assert back == asker.node_id
    assert isinstance(answer, QuorumStateResponse)
    here.view.on_response(answer)
    assert here.told == [QuorumDescribed(4, there.view.state())]


def test_a_response_of_a_former_leader_is_ignored(harness: RaftHarness) -> None:
    leader = harness.elect()
    asker = next(m for m in harness.members.values() if m is not leader)
    here = View(asker)
    here.view.describe(b"router", 4, 0)
    here.view.settle(0)
    ((_, question),) = here.sent
    assert isinstance(question, QuorumStateRequest)
    here.view.on_response(QuorumStateResponse(question.request_id, None))
    assert here.told == []
    here.view.settle(ANSWER_TIMEOUT_MS // 2)
    assert len(here.sent) == 2, "it is asked again"


def test_without_a_leader_the_answer_is_empty(harness: RaftHarness) -> None:
    view = View(harness[0])
    view.view.describe(b"router", 4, 0)
    view.view.settle(ANSWER_TIMEOUT_MS - 1)
    assert view.told == []
    due_ms = view.view.next_deadline_ms()
    assert due_ms is not None
    assert due_ms <= ANSWER_TIMEOUT_MS
    view.view.settle(ANSWER_TIMEOUT_MS)
    assert view.told == [QuorumDescribed(4, None)]
    assert view.view.next_deadline_ms() is None
