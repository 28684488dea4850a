"""A failed peer is unreachable, suspected and, if it led, replaced by another voter."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.raft.configuration import member_id
from odradek.node.controller.failure_detector import SUCCESSION_MS, UNREACHABLE_S, FailureDetector
from tests.support.raft_harness import RaftHarness, RaftMember

FOURTH = member_id(4, b"\x01\x02\x03\x04" * 4)
"""Node 4, which joined later."""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RaftHarness]:
    harness = RaftHarness(tmp_path)
    yield harness
    harness.close()


def failure_detector(member: RaftMember) -> FailureDetector:
    return FailureDetector(member.driver, member.node_id)


def test_voters_campaign_one_after_the_other_when_the_leader_has_exited(
    harness: RaftHarness,
) -> None:
    leader = harness.elect()
    harness.elapse(200)
    harness.stop(leader.node_id)
    now_ms = harness.now_ms
    watching = {member.node_id: failure_detector(member) for member in harness.members.values()}
    for lost in watching.values():
        lost.peer_exited(leader.node_id, now_ms)
    due = {node_id: lost.next_deadline_ms() for node_id, lost in watching.items()}
    assert sorted(due.values(), key=str) == [now_ms, now_ms + SUCCESSION_MS]
    first = next(node_id for node_id, at in due.items() if at == now_ms)
    for lost in watching.values():
        lost.campaign_if_due(now_ms)
    harness.settle()
    assert harness[first].driver.is_leader
    assert watching[first].next_deadline_ms() is None


def test_no_voter_campaigns_when_a_follower_has_exited(harness: RaftHarness) -> None:
    leader = harness.elect()
    harness.elapse(200)
    gone, heir = (member for member in harness.members.values() if member is not leader)
    lost = failure_detector(heir)
    assert lost.peer_exited(gone.node_id, harness.now_ms) == gone.node_id
    assert lost.next_deadline_ms() is None


def test_an_exited_peer_is_suspected_until_it_reconnects(harness: RaftHarness) -> None:
    leader = harness.elect()
    lost = failure_detector(leader)
    assert lost.peer_exited(FOURTH, 70) == 4
    assert lost.peer_exited(-1, 80) is None, "whose address that was is not known"
    assert lost.suspects(90) == [(4, 70)]
    lost.peer_reconnected(FOURTH)
    assert lost.suspects(90) == []


def test_the_former_leader_is_suspected_once(harness: RaftHarness) -> None:
    leader = harness.elect()
    lost = failure_detector(leader)
    for member in (FOURTH, None, leader.node_id):
        lost.set_leader(member)
    assert lost.suspects(90) == [(4, 90)]
    assert lost.suspects(95) == []


def test_a_broken_connection_makes_a_node_unreachable_for_a_while(
    harness: RaftHarness,
) -> None:
    lost = failure_detector(harness.elect())
    told: list[tuple[int, ...]] = []
    now = time.monotonic()
    broken = {FOURTH: now, 2: now, -1: now, 1: now - UNREACHABLE_S}
    lost.report_unreachable(broken, told.append)
    lost.report_unreachable(broken, told.append)
    assert told == [(2, 4)]
    lost.report_unreachable({}, told.append)
    assert told == [(2, 4), ()]
