"""A peer that is gone is doubted, suspected and, if it led, succeeded by one of the others."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.raft.configuration import member_id
from odradek.node.controller.lost_peers import DOUBT_S, SUCCESSION_MS, LostPeers
from tests.support.raft_room import Member, RaftRoom

FOURTH = member_id(4, b"\x01\x02\x03\x04" * 4)
"""Node 4, which joined later."""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RaftRoom]:
    room = RaftRoom(tmp_path)
    yield room
    room.close()


def lost_peers(member: Member) -> LostPeers:
    return LostPeers(member.driver, member.node_id)


def test_the_others_stand_one_after_the_other_when_the_leader_has_gone(room: RaftRoom) -> None:
    leader = room.elect()
    room.elapse(200)
    room.stop(leader.node_id)
    now_ms = room.now_ms
    watching = {member.node_id: lost_peers(member) for member in room.members.values()}
    for lost in watching.values():
        lost.went(leader.node_id, now_ms)
    due = {node_id: lost.next_deadline_ms() for node_id, lost in watching.items()}
    assert sorted(due.values(), key=str) == [now_ms, now_ms + SUCCESSION_MS]
    first = next(node_id for node_id, at in due.items() if at == now_ms)
    for lost in watching.values():
        lost.succeed_if_due(now_ms)
    room.settle()
    assert room[first].driver.is_leader
    assert watching[first].next_deadline_ms() is None


def test_nobody_stands_for_who_did_not_lead(room: RaftRoom) -> None:
    leader = room.elect()
    room.elapse(200)
    gone, heir = (member for member in room.members.values() if member is not leader)
    lost = lost_peers(heir)
    assert lost.went(gone.node_id, room.now_ms) == gone.node_id
    assert lost.next_deadline_ms() is None


def test_who_is_gone_is_a_suspect_until_it_is_connected_again(room: RaftRoom) -> None:
    leader = room.elect()
    lost = lost_peers(leader)
    assert lost.went(FOURTH, 70) == 4
    assert lost.went(-1, 80) is None, "whose address that was is not known"
    assert lost.suspects(90) == [(4, 70)]
    lost.came_back(FOURTH)
    assert lost.suspects(90) == []


def test_whoever_led_before_us_is_a_suspect_once(room: RaftRoom) -> None:
    leader = room.elect()
    lost = lost_peers(leader)
    for member in (FOURTH, None, leader.node_id):
        lost.led_by(member)
    assert lost.suspects(90) == [(4, 90)]
    assert lost.suspects(95) == []


def test_a_broken_connection_is_doubt_for_a_while_and_told_when_it_changes(room: RaftRoom) -> None:
    lost = lost_peers(room.elect())
    told: list[tuple[int, ...]] = []
    now = time.monotonic()
    broken = {FOURTH: now, 2: now, -1: now, 1: now - DOUBT_S}
    lost.doubt(broken, told.append)
    lost.doubt(broken, told.append)
    assert told == [(2, 4)]
    lost.doubt({}, told.append)
    assert told == [(2, 4), ()]
