"""The driver with real metadata logs: what is committed is on the disks, whoever starts anew."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.raft.configuration import AddVoter, Refusal, Voter, member_id
from odradek.cluster.raft.messages import Entry
from odradek.cluster.raft.ready import Proposal
from odradek.cluster.raft.settings import RaftSettings
from odradek.node.controller.raft_driver import KEPT_ENTRIES, RETRY_MS
from odradek.storage.metadata_log import MetadataLog
from tests.support.disks import small_disk
from tests.support.raft_room import Member, RaftRoom


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RaftRoom]:
    room = RaftRoom(tmp_path)
    yield room
    room.close()


def on_disk(member: Member) -> list[bytes]:
    entries = member.log.read(member.log.first_index)
    return [e.data for e in entries if Entry(e.index, e.term, e.data).is_command]


def leads(member: Member) -> bool:
    return member.driver.is_leader


def propose(room: RaftRoom, leader: Member, *payloads: bytes) -> None:
    for payload in payloads:
        assert not isinstance(leader.driver.propose(payload), Refusal)
    room.settle()
    room.elapse(200)


def test_what_is_committed_is_on_every_disk_and_told_once_in_order(room: RaftRoom) -> None:
    leader = room.elect()
    propose(room, leader, b"a", b"b")
    propose(room, leader, b"c")
    for member in room.members.values():
        assert member.commands == on_disk(member) == [b"a", b"b", b"c"]
        indexes = [entry.index for entry in member.applied]
        assert indexes == list(range(1, len(indexes) + 1))


def test_a_member_alone_leads_at_once_without_a_message(tmp_path: Path) -> None:
    room = RaftRoom(tmp_path, [7])
    try:
        before_ms = room.now_ms
        room[7].driver.tick(room.now_ms)
        room.settle()
        assert room[7].driver.is_leader
        assert room.now_ms == before_ms
        room[7].driver.propose(b"a")
        room.settle()
        assert room[7].commands == on_disk(room[7]) == [b"a"]
    finally:
        room.close()


def test_a_log_from_before_there_was_raft_is_carried_on(tmp_path: Path) -> None:
    """Entries of term 1, no vote, no configuration, a snapshot that names no voters."""
    log = MetadataLog.open(tmp_path / "0")
    log.append([b"one", b"two"], term=1)
    writer = log.begin_snapshot(index=2, term=1)
    writer.write(b"state after two")
    writer.commit()
    log.truncate_prefix(3)
    log.append([b"three"], term=1)
    log.close()
    room = RaftRoom(tmp_path, [0])
    try:
        room[0].driver.tick(room.now_ms)
        room.settle()
        room[0].driver.propose(b"four")
        room.settle()
        assert room[0].commands == [b"three", b"four"]
        assert room[0].driver.node.term == 2
        assert room[0].applied[0].index == 3
    finally:
        room.close()


def test_a_restarted_member_remembers_its_term_and_vote_and_hears_all_of_it_again(
    room: RaftRoom,
) -> None:
    leader = room.elect()
    propose(room, leader, b"a", b"b")
    follower = next(m for m in room.members.values() if m is not leader)
    term, vote = follower.driver.node.term, follower.driver.node.vote
    again = room.restart(follower.node_id)
    assert (again.driver.node.term, again.driver.node.vote) == (term, vote)
    room.elapse(300)
    assert again.commands == [b"a", b"b"]


def test_the_others_go_on_when_the_leader_is_gone(room: RaftRoom) -> None:
    first = room.elect()
    propose(room, first, b"a")
    room.stop(first.node_id)
    second = room.elect()
    assert second.driver.node.term > 1
    propose(room, second, b"b")
    back = room.start(first.node_id)
    room.elapse(500)
    assert back.commands == [b"a", b"b"]


def test_a_minority_commits_nothing_and_gives_up_what_it_had(room: RaftRoom) -> None:
    leader = room.elect()
    propose(room, leader, b"a")
    room.away = {leader.node_id}
    leader.driver.propose(b"lost")
    room.settle()
    assert leader.commands == [b"a"]
    new = room.elect()
    propose(room, new, b"kept")
    assert not leader.driver.is_leader, "a leader that hears no majority stops"
    room.away = set()
    room.elapse(1_500)
    assert leader.commands == [b"a", b"kept"]
    assert b"lost" not in on_disk(leader)


def test_a_resigning_leader_is_followed_without_an_election_timeout(room: RaftRoom) -> None:
    leader = room.elect()
    propose(room, leader, b"a")
    before_ms = room.now_ms
    leader.driver.resign()
    room.settle()
    new = next(m for m in room.members.values() if m.driver.is_leader)
    assert new is not leader
    assert room.now_ms == before_ms


def test_a_leader_that_hands_over_loses_nothing_and_leads_until_then(room: RaftRoom) -> None:
    leader = room.elect()
    late, heir = (m for m in room.members.values() if m is not leader)
    leader.driver.propose(b"a")
    before_ms = room.now_ms
    assert leader.driver.hand_over({heir.node_id}) == heir.node_id
    assert leader.driver.propose(b"b") is Refusal.TRANSFER_IN_PROGRESS
    assert leads(leader)
    room.settle()
    assert leads(heir)
    assert room.now_ms == before_ms
    propose(room, heir, b"c")
    assert [m.commands for m in (leader, heir, late)] == [[b"a", b"c"]] * 3


def test_nobody_is_handed_over_to_who_is_not_wanted(room: RaftRoom) -> None:
    leader = room.elect()
    assert leader.driver.hand_over({leader.node_id, 77}) is None
    other = next(m for m in room.members.values() if m is not leader)
    assert other.driver.hand_over({leader.node_id}) is None
    propose(room, leader, b"a")
    assert leads(leader)


def test_a_leader_whose_process_has_ended_is_succeeded_without_a_wait(room: RaftRoom) -> None:
    leader = room.elect()
    propose(room, leader, b"a")
    room.stop(leader.node_id)
    before_ms = room.now_ms
    heir, other = room.members.values()
    heir.driver.succeed(leader.node_id)
    room.settle()
    assert leads(heir)
    other.driver.succeed(leader.node_id)
    room.settle()
    assert leads(heir), "who comes second has a leader already"
    assert room.now_ms == before_ms


def test_who_lacks_what_is_committed_does_not_succeed(room: RaftRoom) -> None:
    leader = room.elect()
    late, other = (m for m in room.members.values() if m is not leader)
    room.away = {late.node_id}
    leader.driver.propose(b"a")
    room.settle()
    room.away = {leader.node_id}
    late.driver.succeed(leader.node_id)
    room.settle()
    assert not leads(late)
    new = room.elect()
    assert new is other
    propose(room, new, b"b")
    assert late.commands == [b"a", b"b"]


def test_nobody_succeeds_who_does_not_lead(room: RaftRoom) -> None:
    leader = room.elect()
    room.elapse(200)
    heir, other = (m for m in room.members.values() if m is not leader)
    heir.driver.succeed(other.node_id)
    room.settle()
    assert leads(leader)
    assert not leads(heir)


def test_a_member_far_behind_gets_a_snapshot_in_chunks(tmp_path: Path) -> None:
    room = RaftRoom(tmp_path, settings=RaftSettings(snapshot_chunk_bytes=1000))
    try:
        leader = room.elect()
        late = next(m for m in room.members.values() if m is not leader)
        room.away = {late.node_id}
        for number in range(20):
            propose(room, leader, b"%d" % number)
        index = leader.applied[-1].index
        content = bytes(range(256)) * 20
        assert leader.driver.snapshot(index, content)
        leader.log.truncate_prefix(index + 1)
        mark = leader.driver.node.log.snapshot
        assert mark is not None
        leader.driver.node.snapshot_taken(mark, index + 1)
        room.away = set()
        room.elapse(1_500)
        (installed,) = late.installed
        assert (installed.last_index, installed.content) == (index, content)
        propose(room, room.elect(), b"after")
        assert late.commands[-1] == b"after"
        again = room.restart(late.node_id)
        assert again.driver.node.log.snapshot == mark
        assert again.driver.node.configuration.voter_ids == (0, 1, 2)
    finally:
        room.close()


def test_who_joins_is_told_by_a_snapshot_who_votes_and_may_vote_itself(tmp_path: Path) -> None:
    """Also after a restart: who votes is in the snapshot, and in the log behind it."""
    joined = member_id(5, b"folder of node 5")
    room = RaftRoom(tmp_path, [0])
    try:
        leader = room.elect()
        propose(room, leader, *(b"%d" % number for number in range(20)))
        index = leader.driver.node.log.applied_index
        assert leader.driver.snapshot(index, b"content")
        assert leader.driver.first_index == index + 1, "nothing is kept for others"
        member = room.start(joined)
        room.elapse(1_000)
        (installed,) = member.installed
        assert (installed.last_index, installed.content) == (index, b"content")
        assert member.driver.node.configuration.voter_ids == (0,)
        assert not isinstance(leader.driver.change_membership(AddVoter(Voter(joined))), Refusal)
        propose(room, leader, b"a")
        again = room.restart(joined)
        assert again.driver.node.configuration.voter_ids == (0, joined)
        room.elapse(1_000)
        propose(room, room.elect(), b"b")
        assert again.commands[-2:] == [b"a", b"b"]
        room.away = {0}
        assert isinstance(leader.driver.propose(b"c"), Proposal)
        room.elapse(2_000)
        assert not room[joined].driver.is_leader, "one of two is no majority"
    finally:
        room.close()


def test_a_snapshot_keeps_entries_for_those_who_are_a_little_behind(room: RaftRoom) -> None:
    leader = room.elect()
    propose(room, leader, b"a", b"b")
    index = leader.applied[-1].index
    assert index < KEPT_ENTRIES
    assert leader.driver.snapshot(index, b"content")
    assert leader.driver.first_index == 1
    assert leader.log.snapshot is not None


def test_a_leader_without_room_takes_back_what_it_had_not_persisted(tmp_path: Path) -> None:
    with small_disk(tmp_path / "0", 16 << 20) as disk:
        room = RaftRoom(tmp_path, [0])
        try:
            member = room[0]
            member.driver.tick(room.now_ms)
            room.settle()
            member.driver.propose(b"a")
            room.settle()
            disk.fill()
            member.driver.propose(bytes(8 << 20))
            room.settle()
            (taken_back,) = member.taken_back
            assert taken_back.last_index == member.log.last_index
            assert member.commands == [b"a"]
            assert not leads(member)
            disk.empty()
            room.elapse(RETRY_MS + 50)
            assert leads(member)
            member.driver.propose(b"b")
            room.settle()
            assert member.commands[-1] == b"b"
        finally:
            room.close()


def test_a_follower_without_room_falls_behind_and_comes_back(tmp_path: Path) -> None:
    with small_disk(tmp_path / "2", 16 << 20) as disk:
        room = RaftRoom(tmp_path)
        try:
            leader = room.elect()
            assert leader.node_id != 2
            propose(room, leader, b"a")
            disk.fill()
            propose(room, leader, b"b")
            assert leader.commands == [b"a", b"b"], "two of three are enough"
            assert room[2].commands == [b"a"]
            disk.empty()
            room.elapse(RETRY_MS + 500)
            assert room[2].commands == [b"a", b"b"]
        finally:
            room.close()


def test_what_gives_room_back_is_stored_with_the_room_kept_for_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "2", 16 << 20) as disk:
        room = RaftRoom(tmp_path)
        room.may_spend = lambda entry: entry.data.startswith(b"delete")
        try:
            leader = room.elect()
            propose(room, leader, b"a")
            disk.fill()
            propose(room, leader, b"delete a")
            assert room[2].commands == [b"a", b"delete a"]
        finally:
            room.close()
