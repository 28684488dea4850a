"""The processes of a node get every committed entry once, in order, or a snapshot."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
import zmq

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import ClusterCreated, decode_records, encode_records
from odradek.node.bus.endpoint import DealerLink, drain, drain_with_identity, encode, ipc_address
from odradek.node.bus.messages import (
    FromController,
    LivenessCheck,
    MetadataApplied,
    MetadataRecords,
    MetadataSnapshot,
    SubscribeMetadata,
)
from odradek.node.bus.metadata_feed import apply_metadata
from odradek.node.controller.metadata_publisher import MetadataPublisher, snapshot_of
from odradek.node.controller.process_liveness import ProcessLiveness
from tests.support.metadata_history import have_same_content
from tests.support.raft_harness import RaftHarness
from tests.support.waiting import wait_until

T = TypeVar("T")
ENTRY = encode_records([ClusterCreated("c")])


class Node:
    """A quorum of one that has committed some entries, and its publisher's end of the bus."""

    def __init__(self, folder: Path, *, sets_back: bool = False) -> None:
        self.raft = RaftHarness(folder / "log", [0])
        self.member = self.raft[0]
        self.member.driver.tick(self.raft.now_ms)
        self.raft.settle()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.address = ipc_address(folder, "controller")
        self.publisher = MetadataPublisher(
            self.context,
            self.address,
            self.member.driver,
            sets_back=sets_back,
            liveness=ProcessLiveness(["worker-0", "router-0"], timeout_ms=1_000),
        )
        self.publisher.is_serving = True
        self.links: list[DealerLink] = []
        self._decode = msgspec.msgpack.Decoder(list[FromController]).decode

    @property
    def image(self) -> MetadataImage:
        delta = MetadataDelta(MetadataImage.empty())
        for entry in self.member.applied:
            for record in decode_records(entry.data) if entry.is_command else ():
                delta.replay(record)
        return delta.apply(self.member.applied[-1].index)

    def commit(self, count: int = 1) -> None:
        before = len(self.member.applied)
        for _ in range(count):
            self.member.driver.propose(ENTRY)
        self.raft.settle()
        self.publisher.publish(self.member.applied[before:])

    def follower(self, name: str, offset: int, *, cluster_id: str = "") -> DealerLink:
        """A process that connects and greets; what it says is heard before this returns."""
        link = DealerLink(self.context, self.address, name.encode())
        self.links.append(link)
        wait_until(link.take_connected, what="connected")
        link.socket.send(encode([SubscribeMetadata(name, 1, offset, cluster_id)]))
        ((identity, payload),) = wait_until(
            lambda: list(drain_with_identity(self.publisher.socket)), what="the greeting"
        )
        (greeting,) = msgspec.msgpack.decode(payload, type=list[SubscribeMetadata])
        self.publisher.subscribe(identity, greeting, self.image)
        return link

    def hears(self, link: DealerLink, condition: Callable[[list[FromController]], T]) -> T:
        heard: list[FromController] = []

        def look() -> T:
            for payload in drain(link.socket):
                heard.extend(self._decode(payload))
            return condition(heard)

        return wait_until(look, what="it is told")

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.publisher.socket.close(0)
        self.context.term()
        self.raft.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


def test_a_new_process_gets_a_snapshot(node: Node) -> None:
    node.commit(3)
    link = node.follower("worker-0", 0)
    (message,) = node.hears(link, lambda heard: heard)
    assert isinstance(message, MetadataSnapshot)
    assert message.offset == node.image.offset


def test_a_process_gets_the_missing_entries_and_then_every_new_one(node: Node) -> None:
    node.commit(3)
    link = node.follower("worker-0", 2)
    node.commit(2)
    messages = node.hears(link, lambda heard: heard if len(heard) == 2 else None)
    assert messages is not None
    first, second = messages
    assert isinstance(first, MetadataRecords)
    assert isinstance(second, MetadataRecords)
    assert (first.base_offset, second.base_offset) == (2, 4)
    assert len(first.records) == len(second.records) == 2


def test_entries_without_records_are_published_as_empty_ones(node: Node) -> None:
    """A leader's first entry has an index but no records."""
    image = MetadataDelta(MetadataImage.empty()).apply(0)
    message = MetadataRecords(0, ())
    assert apply_metadata(image, message) is image
    link = node.follower("worker-0", 0)
    node.hears(link, lambda heard: heard)
    node.publisher.publish(node.member.applied[:1])
    (told,) = node.hears(link, lambda heard: heard)
    assert isinstance(told, MetadataRecords)
    after = apply_metadata(image, told)
    assert after is not None
    assert after.offset == 1
    assert have_same_content(after, image)


def test_the_applied_offset_is_that_of_the_slowest_process(node: Node) -> None:
    node.commit(3)
    offset = node.image.offset
    assert node.publisher.applied_offset(node.image) == offset, (
        "nobody follows, nobody is waited for"
    )
    node.follower("worker-0", 1)
    node.follower("router-0", 2)
    assert node.publisher.names == {"worker-0", "router-0"}
    assert node.publisher.applied_offset(node.image) == 1
    node.publisher.applied(b"worker-0", MetadataApplied("worker-0", offset))
    assert node.publisher.applied_offset(node.image) == 2
    node.publisher.applied(b"nobody", MetadataApplied("nobody", 0))
    assert node.publisher.applied_offset(node.image) == 2


def test_an_unresponsive_process_does_not_hold_the_applied_offset(node: Node) -> None:
    node.commit(3)
    node.follower("worker-0", 1)
    router = node.follower("router-0", 2)
    node.publisher.tick(10_000)
    assert node.hears(router, lambda heard: LivenessCheck() in heard)
    node.publisher.liveness.on_response("router-0")
    for now_ms in range(10_500, 11_100, 500):
        node.publisher.tick(now_ms)
        node.publisher.liveness.on_response("router-0")
    assert node.publisher.liveness.unresponsive == {"worker-0"}
    assert node.publisher.applied_offset(node.image) == 2
    node.follower("worker-0", 1)
    assert node.publisher.liveness.unresponsive == set(), "it has greeted again"
    assert node.publisher.applied_offset(node.image) == 1


def test_a_disconnected_process_does_not_hold_the_applied_offset(node: Node) -> None:
    node.commit()
    link = node.follower("worker-0", 1)
    node.links.remove(link)
    link.close()

    def is_forgotten() -> bool:
        node.publisher.broadcast(snapshot_of(node.image))
        return not node.publisher.names

    wait_until(is_forgotten, what="it is forgotten")


def test_a_forgotten_process_does_not_hold_the_applied_offset(node: Node) -> None:
    node.commit(3)
    node.follower("worker-0", 2)
    node.follower("worker-1", 1)
    node.publisher.forget({"worker-1", "worker-2"})
    assert node.publisher.names == {"worker-0"}
    assert node.publisher.applied_offset(node.image) == 2


def test_a_process_of_another_cluster_is_not_served(node: Node) -> None:
    node.commit()
    node.follower("worker-0", 0, cluster_id="another")
    assert node.publisher.names == set()


def test_nothing_is_published_before_is_serving(node: Node) -> None:
    node.publisher.is_serving = False
    link = node.follower("worker-0", 0)
    assert node.publisher.names == set()
    node.publisher.is_serving = True
    node.publisher.serve_waiting(node.image)
    assert node.hears(link, lambda heard: heard)
    assert node.publisher.names == {"worker-0"}


def test_a_process_ahead_of_a_new_controller_waits(node: Node) -> None:
    """A worker that got fewer topics would drop the partitions of the others."""
    node.commit(2)
    link = node.follower("worker-0", node.image.offset + 2)
    node.commit(1)
    node.publisher.serve_waiting(node.image)
    assert node.publisher.names == set()
    node.commit(2)
    node.publisher.serve_waiting(node.image)
    (message,) = node.hears(link, lambda heard: heard)
    assert isinstance(message, MetadataRecords)
    assert message.base_offset == node.image.offset - 1


def test_a_quorum_of_one_sets_a_process_back(tmp_path: Path) -> None:
    node = Node(tmp_path, sets_back=True)
    try:
        node.commit(2)
        link = node.follower("worker-0", 1_000)
        (message,) = node.hears(link, lambda heard: heard)
        assert isinstance(message, MetadataSnapshot)
        assert message.offset == node.image.offset
    finally:
        node.close()
