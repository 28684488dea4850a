"""The driver with real metadata logs: committed entries are durable across restarts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.raft.configuration import AddVoter, ProposalRefusal, Voter, member_id
from odradek.cluster.raft.messages import Entry
from odradek.cluster.raft.ready import Proposal
from odradek.cluster.raft.settings import RaftSettings
from odradek.node.controller.raft_driver import KEPT_ENTRIES, RETRY_MS
from odradek.storage.metadata_log import MetadataLog
from tests.support.disks import small_disk
from tests.support.metadata_logs import append_payloads
from tests.support.raft_harness import RaftHarness, RaftMember


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RaftHarness]:
    harness = RaftHarness(tmp_path)
    yield harness
    harness.close()


def on_disk(member: RaftMember) -> list[bytes]:
    entries = member.log.read_entries()
    return [e.data for e in entries if Entry(e.index, e.term, e.data).is_command]


def leads(member: RaftMember) -> bool:
    return member.driver.is_leader


def propose(harness: RaftHarness, leader: RaftMember, *payloads: bytes) -> None:
    for payload in payloads:
        assert not isinstance(leader.driver.propose(payload), ProposalRefusal)
    harness.settle()
    harness.elapse(200)


def test_committed_entries_are_durable_and_reported_once_in_order(harness: RaftHarness) -> None:
    leader = harness.elect()
    propose(harness, leader, b"a", b"b")
    propose(harness, leader, b"c")
    for member in harness.members.values():
        assert member.commands == on_disk(member) == [b"a", b"b", b"c"]
        indexes = [entry.index for entry in member.applied]
        assert indexes == list(range(1, len(indexes) + 1))


def test_a_sole_voter_leads_at_once(tmp_path: Path) -> None:
    harness = RaftHarness(tmp_path, [7])
    try:
        before_ms = harness.now_ms
        harness[7].driver.tick(harness.now_ms)
        harness.settle()
        assert harness[7].driver.is_leader
        assert harness.now_ms == before_ms
        harness[7].driver.propose(b"a")
        harness.settle()
        assert harness[7].commands == on_disk(harness[7]) == [b"a"]
    finally:
        harness.close()


def test_a_log_from_before_raft_is_continued(tmp_path: Path) -> None:
    """Entries of term 1, no vote, no configuration, a snapshot that names no voters."""
    log = MetadataLog.open(tmp_path / "0")
    append_payloads(log, [b"one", b"two"], term=1)
    writer = log.begin_snapshot(index=2, term=1)
    writer.write(b"state after two")
    writer.commit()
    log.truncate_prefix(3)
    append_payloads(log, [b"three"], term=1)
    log.close()
    harness = RaftHarness(tmp_path, [0])
    try:
        harness[0].driver.tick(harness.now_ms)
        harness.settle()
        harness[0].driver.propose(b"four")
        harness.settle()
        assert harness[0].commands == [b"three", b"four"]
        assert harness[0].driver.node.term == 2
        assert harness[0].applied[0].index == 3
    finally:
        harness.close()


def test_a_restarted_member_has_its_term_and_vote_and_applies_its_log(
    harness: RaftHarness,
) -> None:
    leader = harness.elect()
    propose(harness, leader, b"a", b"b")
    follower = next(m for m in harness.members.values() if m is not leader)
    term, vote = follower.driver.node.term, follower.driver.node.vote
    again = harness.restart(follower.node_id)
    assert (again.driver.node.term, again.driver.node.vote) == (term, vote)
    harness.elapse(300)
    assert again.commands == [b"a", b"b"]


def test_the_quorum_continues_without_its_leader(harness: RaftHarness) -> None:
    first = harness.elect()
    propose(harness, first, b"a")
    harness.stop(first.node_id)
    second = harness.elect()
    assert second.driver.node.term > 1
    propose(harness, second, b"b")
    back = harness.start(first.node_id)
    harness.elapse(500)
    assert back.commands == [b"a", b"b"]


def test_a_minority_commits_nothing_and_truncates_its_entries(harness: RaftHarness) -> None:
    leader = harness.elect()
    propose(harness, leader, b"a")
    harness.away = {leader.node_id}
    leader.driver.propose(b"lost")
    harness.settle()
    assert leader.commands == [b"a"]
    new = harness.elect()
    propose(harness, new, b"kept")
    assert not leader.driver.is_leader, "a leader that hears no majority stops"
    harness.away = set()
    harness.elapse(1_500)
    assert leader.commands == [b"a", b"kept"]
    assert b"lost" not in on_disk(leader)


def test_resigning_needs_no_election_timeout(harness: RaftHarness) -> None:
    leader = harness.elect()
    propose(harness, leader, b"a")
    before_ms = harness.now_ms
    leader.driver.resign()
    harness.settle()
    new = next(m for m in harness.members.values() if m.driver.is_leader)
    assert new is not leader
    assert harness.now_ms == before_ms


def test_transferring_leadership_loses_no_entries(harness: RaftHarness) -> None:
    leader = harness.elect()
    late, heir = (m for m in harness.members.values() if m is not leader)
    leader.driver.propose(b"a")
    before_ms = harness.now_ms
    assert leader.driver.transfer_leadership({heir.node_id}) == heir.node_id
    assert leader.driver.propose(b"b") is ProposalRefusal.TRANSFER_IN_PROGRESS
    assert leads(leader)
    harness.settle()
    assert leads(heir)
    assert harness.now_ms == before_ms
    propose(harness, heir, b"c")
    assert [m.commands for m in (leader, heir, late)] == [[b"a", b"c"]] * 3


def test_leadership_is_transferred_to_candidates_only(harness: RaftHarness) -> None:
    leader = harness.elect()
    assert leader.driver.transfer_leadership({leader.node_id, 77}) is None
    other = next(m for m in harness.members.values() if m is not leader)
    assert other.driver.transfer_leadership({leader.node_id}) is None
    propose(harness, leader, b"a")
    assert leads(leader)


def test_campaign_now_replaces_an_ended_leader_at_once(harness: RaftHarness) -> None:
    leader = harness.elect()
    propose(harness, leader, b"a")
    harness.stop(leader.node_id)
    before_ms = harness.now_ms
    heir, other = harness.members.values()
    heir.driver.campaign_now(leader.node_id)
    harness.settle()
    assert leads(heir)
    other.driver.campaign_now(leader.node_id)
    harness.settle()
    assert leads(heir), "who comes second has a leader already"
    assert harness.now_ms == before_ms


def test_a_member_without_committed_entries_is_not_elected(harness: RaftHarness) -> None:
    leader = harness.elect()
    late, other = (m for m in harness.members.values() if m is not leader)
    harness.away = {late.node_id}
    leader.driver.propose(b"a")
    harness.settle()
    harness.away = {leader.node_id}
    late.driver.campaign_now(leader.node_id)
    harness.settle()
    assert not leads(late)
    new = harness.elect()
    assert new is other
    propose(harness, new, b"b")
    assert late.commands == [b"a", b"b"]


def test_campaign_now_needs_the_current_leader(harness: RaftHarness) -> None:
    leader = harness.elect()
    harness.elapse(200)
    heir, other = (m for m in harness.members.values() if m is not leader)
    heir.driver.campaign_now(other.node_id)
    harness.settle()
    assert leads(leader)
    assert not leads(heir)


def test_a_member_far_behind_gets_a_snapshot_in_chunks(tmp_path: Path) -> None:
    harness = RaftHarness(tmp_path, settings=RaftSettings(snapshot_chunk_bytes=1000))
    try:
        leader = harness.elect()
        late = next(m for m in harness.members.values() if m is not leader)
        harness.away = {late.node_id}
        for number in range(20):
            propose(harness, leader, b"%d" % number)
        index = leader.applied[-1].index
        content = bytes(range(256)) * 20
        assert leader.driver.snapshot(index, content)
        leader.log.truncate_prefix(index + 1)
        mark = leader.driver.node.log.snapshot
        assert mark is not None
        leader.driver.node.snapshot_taken(mark, index + 1)
        harness.away = set()
        harness.elapse(1_500)
        assert late.installed == [(index, content)]
        propose(harness, harness.elect(), b"after")
        assert late.commands[-1] == b"after"
        again = harness.restart(late.node_id)
        assert again.driver.node.log.snapshot == mark
        assert again.driver.node.configuration.voter_ids == (0, 1, 2)
    finally:
        harness.close()


def test_a_joining_member_gets_the_voters_by_snapshot_and_can_become_one(tmp_path: Path) -> None:
    """Also after a restart: the voters are in the snapshot and in the log after it."""
    joined = member_id(5, b"folder of node 5")
    harness = RaftHarness(tmp_path, [0])
    try:
        leader = harness.elect()
        propose(harness, leader, *(b"%d" % number for number in range(20)))
        index = leader.driver.node.log.applied_index
        assert leader.driver.snapshot(index, b"content")
        assert leader.driver.node.log.first_index == index + 1, "nothing is kept for others"
        member = harness.start(joined)
        harness.elapse(1_000)
        assert member.installed == [(index, b"content")]
        assert member.driver.node.configuration.voter_ids == (0,)
        assert not isinstance(
            leader.driver.change_membership(AddVoter(Voter(joined))), ProposalRefusal
        )
        propose(harness, leader, b"a")
        again = harness.restart(joined)
        assert again.driver.node.configuration.voter_ids == (0, joined)
        harness.elapse(1_000)
        propose(harness, harness.elect(), b"b")
        assert again.commands[-2:] == [b"a", b"b"]
        harness.away = {0}
        assert isinstance(leader.driver.propose(b"c"), Proposal)
        harness.elapse(2_000)
        assert not harness[joined].driver.is_leader, "one of two is no majority"
    finally:
        harness.close()


def test_a_snapshot_retains_entries_for_followers_slightly_behind(harness: RaftHarness) -> None:
    leader = harness.elect()
    propose(harness, leader, b"a", b"b")
    index = leader.applied[-1].index
    assert index < KEPT_ENTRIES
    assert leader.driver.snapshot(index, b"content")
    assert leader.driver.node.log.first_index == 1
    assert leader.log.snapshot is not None


def test_a_leader_with_a_full_disk_discards_unpersisted_entries(tmp_path: Path) -> None:
    with small_disk(tmp_path / "0", 16 << 20) as disk:
        harness = RaftHarness(tmp_path, [0])
        try:
            member = harness[0]
            member.driver.tick(harness.now_ms)
            harness.settle()
            member.driver.propose(b"a")
            harness.settle()
            disk.fill()
            member.driver.propose(bytes(8 << 20))
            harness.settle()
            assert member.discarded_after == [member.log.last_index]
            assert member.commands == [b"a"]
            assert not leads(member)
            disk.empty()
            harness.elapse(RETRY_MS + 50)
            assert leads(member)
            member.driver.propose(b"b")
            harness.settle()
            assert member.commands[-1] == b"b"
        finally:
            harness.close()


def test_a_follower_with_a_full_disk_falls_behind_and_recovers(tmp_path: Path) -> None:
    with small_disk(tmp_path / "2", 16 << 20) as disk:
        harness = RaftHarness(tmp_path)
        try:
            leader = harness.elect()
            assert leader.node_id != 2
            propose(harness, leader, b"a")
            disk.fill()
            propose(harness, leader, b"b")
            assert leader.commands == [b"a", b"b"], "two of three are enough"
            assert harness[2].commands == [b"a"]
            disk.empty()
            harness.elapse(RETRY_MS + 500)
            assert harness[2].commands == [b"a", b"b"]
        finally:
            harness.close()


def test_entries_that_free_space_use_the_reserve(tmp_path: Path) -> None:
    with small_disk(tmp_path / "2", 16 << 20) as disk:
        harness = RaftHarness(tmp_path)
        harness.may_use_reserve = lambda entry: entry.data.startswith(b"delete")
        try:
            leader = harness.elect()
            propose(harness, leader, b"a")
            disk.fill()
            propose(harness, leader, b"delete a")
            assert harness[2].commands == [b"a", b"delete a"]
        finally:
            harness.close()
