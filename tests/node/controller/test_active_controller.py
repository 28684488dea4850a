"""Decisions on uncommitted state, each on top of the one before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.controller.commands import (
    AddRaftVoter,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    RegisterBroker,
    RemoveRaftVoter,
    TopicReference,
    TopicsReply,
    VotersReply,
    decode_reply,
)
from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import ClusterCreated
from odradek.cluster.raft.configuration import member_id
from odradek.node.controller.active_controller import (
    ActiveController,
    NoDiskSpaceError,
    NotProposedError,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import ZERO_UUID
from tests.support.raft_harness import PeerHeaders, RaftHarness, RaftMember

NOW_MS = 5_000
FOLDER = bytes(range(16))


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RaftHarness]:
    harness = RaftHarness(tmp_path)
    yield harness
    harness.close()


class Active:
    """The leader's decisions on a cluster with one broker."""

    def __init__(self, harness: RaftHarness) -> None:
        self.leader: RaftMember = harness.elect()
        self.has_space = True
        image = first_image(self.leader)
        self.decisions = ActiveController(
            self.leader.driver,
            image,
            term=self.leader.driver.node.term,
            node_id=0,
            static={},
            has_space=lambda _size: self.has_space,
            headers=PeerHeaders(),
        )
        self.decisions.propose([ClusterCreated("c")], frees_space=True)
        self.decisions.decide(RegisterBroker(0, b"i" * 16), NOW_MS)

    def create(self, name: str) -> int:
        """The topic's error code."""
        topic_id = name.encode().ljust(16, b"-")
        command = CreateTopics((NewTopic(name, topic_id, 1, 1),))
        reply = decode_reply(self.decisions.decide(command, NOW_MS)[0])
        assert isinstance(reply, TopicsReply)
        return reply.results[0].error_code


def first_image(member: RaftMember) -> MetadataImage:
    """The leader has applied only its own first entry."""
    return MetadataDelta(MetadataImage.empty()).apply(member.applied[-1].index)


def test_a_decision_sees_uncommitted_ones_before_it(
    harness: RaftHarness,
) -> None:
    active = Active(harness)
    assert active.create("a") == ErrorCode.NONE
    assert active.create("a") == ErrorCode.NONE, "the same id: it was sent again"
    committed = active.leader.driver.node.log.committed_index
    assert active.decisions.index > committed


def test_a_committed_entry_returns_the_image_of_its_decision(harness: RaftHarness) -> None:
    active = Active(harness)
    active.create("a")
    wanted = active.decisions.controller.image
    harness.settle()
    images = [active.decisions.committed(entry) for entry in active.leader.applied[1:]]
    assert images[-1] is wanted
    assert [image.offset for image in images if image is not None] == [
        entry.index for entry in active.leader.applied[1:]
    ]


def test_an_entry_of_another_leader_has_no_image(harness: RaftHarness) -> None:
    active = Active(harness)
    harness.settle()
    assert active.decisions.committed(active.leader.applied[0]) is None


def test_a_refused_command_leaves_no_entry(harness: RaftHarness) -> None:
    active = Active(harness)
    before = active.decisions.index
    with pytest.raises(ApiError):
        active.decisions.decide(RegisterBroker(0, b"j" * 16, cluster_id="other"), NOW_MS)
    assert active.decisions.index == before == active.leader.driver.node.log.last_index


def test_on_a_full_disk_only_commands_that_free_space_are_decided(harness: RaftHarness) -> None:
    active = Active(harness)
    active.has_space = False
    before = active.decisions.index
    with pytest.raises(NoDiskSpaceError):
        active.create("a")
    assert active.decisions.index == before
    active.decisions.decide(DeleteTopics((TopicReference(name="none"),)), NOW_MS)


def add(node_id: int, *, waits: bool = True) -> AddRaftVoter:
    return AddRaftVoter(node_id, FOLDER, waits)


def test_a_membership_change_is_an_entry_among_others(harness: RaftHarness) -> None:
    joined = member_id(7, FOLDER)
    active = Active(harness)
    harness.start(joined)
    harness.elapse(1_000)
    active.create("before")
    reply, entry_index = active.decisions.decide(add(7), NOW_MS)
    active.create("after")
    assert entry_index == active.decisions.index - 1
    assert isinstance(decode_reply(reply), VotersReply)
    harness.settle()
    assert joined in active.leader.driver.node.configuration.voter_ids
    assert active.leader.applied[-1].index == active.decisions.index


def test_add_raft_voter_without_waiting_is_answered_at_once(harness: RaftHarness) -> None:
    active = Active(harness)
    harness.start(member_id(7, FOLDER))
    harness.elapse(1_000)
    _, entry_index = active.decisions.decide(add(7, waits=False), NOW_MS)
    assert entry_index == 0


def test_a_membership_change_waits_for_the_one_before_and_for_a_caught_up_member(
    harness: RaftHarness,
) -> None:
    active = Active(harness)
    harness.start(member_id(7, FOLDER))
    harness.elapse(1_000)
    with pytest.raises(ApiError) as refused:
        active.decisions.decide(add(8), NOW_MS)
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
    active.decisions.decide(add(7), NOW_MS)
    other = next(n for n in harness.members if n != active.leader.node_id)
    with pytest.raises(NotProposedError, match="not committed yet"):
        active.decisions.decide(RemoveRaftVoter(other, ZERO_UUID), NOW_MS)
    harness.settle()
    active.decisions.decide(RemoveRaftVoter(other, ZERO_UUID), NOW_MS)
    harness.settle()
    assert other not in active.leader.driver.node.configuration.voter_ids


def test_a_leader_transfers_leadership_before_it_is_removed(harness: RaftHarness) -> None:
    active = Active(harness)
    harness.elapse(200)
    own = active.leader.node_id
    with pytest.raises(NotProposedError, match="transfers leadership"):
        active.decisions.decide(RemoveRaftVoter(own, ZERO_UUID), NOW_MS)
    harness.settle()
    assert not active.leader.driver.is_leader
    assert own in active.leader.driver.node.configuration.voter_ids


def test_the_only_voter_cannot_be_removed(tmp_path: Path) -> None:
    harness = RaftHarness(tmp_path, [0])
    active = Active(harness)
    harness.settle()
    with pytest.raises(ApiError, match="the only vote"):
        active.decisions.decide(RemoveRaftVoter(0, ZERO_UUID), NOW_MS)
    harness.close()


def test_a_former_leader_decides_nothing(harness: RaftHarness) -> None:
    active = Active(harness)
    harness.settle()
    active.leader.driver.resign()
    harness.settle()
    before = active.decisions.index
    with pytest.raises(NotProposedError):
        active.create("a")
    assert active.decisions.index == before


def test_brokers_without_heartbeats_are_fenced_by_tick(harness: RaftHarness) -> None:
    active = Active(harness)
    register = RegisterBroker(1, b"k" * 16, starts_fenced=False)
    active.decisions.decide(register, NOW_MS)
    controller = active.decisions.controller
    controller.activate(NOW_MS)
    now_ms = NOW_MS
    while not controller.image.brokers[1].is_fenced:
        due_ms = controller.next_deadline_ms()
        assert due_ms is not None
        assert due_ms < NOW_MS + 60_000
        now_ms = max(now_ms + 1, due_ms)
        active.decisions.tick(now_ms, 0)
    assert now_ms >= NOW_MS + 500
