"""Decisions ahead of what is committed, each on top of the one before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.controller.commands import (
    CreateTopics,
    NewTopic,
    RegisterBroker,
    TopicsReply,
    decode_reply,
)
from cluster.metadata.delta import MetadataDelta
from cluster.metadata.image import MetadataImage
from cluster.metadata.records import ClusterCreated
from node.controller.decisions import Decisions, NoRoomError, NotNowError
from protocol.errors import ApiError, ErrorCode
from tests.support.raft_room import Hearsay, Member, RaftRoom

NOW_MS = 5_000


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RaftRoom]:
    room = RaftRoom(tmp_path)
    yield room
    room.close()


class Active:
    """The leader's decisions on a cluster with one broker."""

    def __init__(self, room: RaftRoom) -> None:
        self.leader: Member = room.elect()
        self.has_room = True
        image = first_image(self.leader)
        self.decisions = Decisions(
            self.leader.driver,
            image,
            term=self.leader.driver.node.term,
            node_id=0,
            static={},
            has_room=lambda _size: self.has_room,
            headers=Hearsay(),
        )
        self.decisions.propose([ClusterCreated("c")], makes_room=True)
        self.decisions.decide(RegisterBroker(0, b"i" * 16), NOW_MS, makes_room=True)

    def create(self, name: str, *, makes_room: bool = False) -> int:
        """The topic's error code."""
        topic_id = name.encode().ljust(16, b"-")
        command = CreateTopics((NewTopic(name, topic_id, 1, 1),))
        decided = self.decisions.decide(command, NOW_MS, makes_room=makes_room)
        reply = decode_reply(decided.reply)
        assert isinstance(reply, TopicsReply)
        return reply.results[0].error_code


def first_image(member: Member) -> MetadataImage:
    """What the leader has applied: its own first entry and nothing else."""
    return MetadataDelta(MetadataImage.empty()).apply(member.applied[-1].index)


def test_a_decision_sees_the_ones_before_it_though_nothing_is_committed(room: RaftRoom) -> None:
    active = Active(room)
    assert active.create("a") == ErrorCode.NONE
    assert active.create("a") == ErrorCode.NONE, "the same id: it was sent again"
    committed = active.leader.driver.node.log.committed_index
    assert active.decisions.index > committed


def test_what_is_committed_gives_the_image_that_was_decided_upon(room: RaftRoom) -> None:
    active = Active(room)
    active.create("a")
    wanted = active.decisions.controller.image
    room.settle()
    images = [active.decisions.committed(entry) for entry in active.leader.applied[1:]]
    assert images[-1] is wanted
    assert [image.offset for image in images if image is not None] == [
        entry.index for entry in active.leader.applied[1:]
    ]


def test_an_entry_of_somebody_else_is_not_taken_for_ours(room: RaftRoom) -> None:
    active = Active(room)
    room.settle()
    assert active.decisions.committed(active.leader.applied[0]) is None


def test_a_refused_command_leaves_no_entry(room: RaftRoom) -> None:
    active = Active(room)
    before = active.decisions.index
    with pytest.raises(ApiError):
        active.decisions.decide(
            RegisterBroker(0, b"j" * 16, cluster_id="other"), NOW_MS, makes_room=True
        )
    assert active.decisions.index == before == active.leader.driver.node.log.last_index


def test_without_room_only_what_makes_room_is_decided(room: RaftRoom) -> None:
    active = Active(room)
    active.has_room = False
    before = active.decisions.index
    with pytest.raises(NoRoomError):
        active.create("a")
    assert active.decisions.index == before
    assert active.create("b", makes_room=True) == ErrorCode.NONE


def test_who_leads_no_more_decides_nothing(room: RaftRoom) -> None:
    active = Active(room)
    room.settle()
    active.leader.driver.resign()
    room.settle()
    before = active.decisions.index
    with pytest.raises(NotNowError):
        active.create("a")
    assert active.decisions.index == before


def test_silent_brokers_are_fenced_when_it_is_time(room: RaftRoom) -> None:
    active = Active(room)
    register = RegisterBroker(1, b"k" * 16, starts_fenced=False)
    active.decisions.decide(register, NOW_MS, makes_room=True)
    controller = active.decisions.controller
    controller.lead(NOW_MS)
    now_ms = NOW_MS
    while not controller.image.brokers[1].is_fenced:
        due_ms = controller.next_deadline_ms()
        assert due_ms is not None
        assert due_ms < NOW_MS + 60_000
        now_ms = max(now_ms + 1, due_ms)
        active.decisions.tick(now_ms)
    assert now_ms >= NOW_MS + 500
