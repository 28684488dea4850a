"""Three controllers alone, with a short log: one that was down for long gets a snapshot."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest
import zmq

from odradek.cluster.controller.commands import (
    CreateTopics,
    NewTopic,
    TopicsReply,
    decode_reply,
    encode_command,
)
from odradek.cluster.metadata.image import MetadataImage
from odradek.node.bus.endpoint import DealerLink, drain, encode, ipc_address
from odradek.node.bus.messages import (
    CommandSubmitted,
    DescribeQuorum,
    FromController,
    MetadataApplied,
    MetadataRecords,
    MetadataSnapshot,
    QuorumDescribed,
    SubmitCommand,
    SubscribeMetadata,
)
from odradek.node.bus.metadata_feed import apply_metadata
from odradek.storage.metadata_log import MetadataLog
from tests.support.child_process import ChildProcess, node_config
from tests.support.metadata_history import have_same_content
from tests.support.ports import free_port
from tests.support.waiting import wait_until

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
FAR_MS = 2**62
PROGRAM = (
    "from odradek.node.controller import metadata_loader, process, raft_driver;"
    "metadata_loader.SNAPSHOT_ENTRIES = 30;"
    "raft_driver.KEPT_ENTRIES = 5;"
    "process.main()"
)


class Follower:
    """A router or a worker of a node that applies metadata at once."""

    def __init__(self, context: Context, address: str, name: str) -> None:
        self.name = name
        self.image = MetadataImage.empty()
        self.heard: list[FromController] = []
        self.link = DealerLink(context, address, name.encode())
        self._decode = msgspec.msgpack.Decoder(list[FromController]).decode

    def look(self) -> None:
        if self.link.take_connected():
            self.link.socket.send(encode([SubscribeMetadata(self.name, 1, self.image.offset)]))
        for payload in drain(self.link.socket):
            for message in self._decode(payload):
                self.heard.append(message)
                if isinstance(message, MetadataRecords | MetadataSnapshot):
                    image = apply_metadata(self.image, message)
                    assert image is not None, "entries are missing"
                    self.image = image
                    self.link.socket.send(encode([MetadataApplied(self.name, image.offset)]))


class Member:
    """A controller process, and the two processes that receive its metadata."""

    def __init__(self, context: Context, folder: Path, node_id: int, peers: str) -> None:
        self.config = node_config(
            folder,
            node_id=str(node_id),
            peers=peers,
            listeners=f"127.0.0.1:{free_port()}",
            workers="1",
        )
        self._context = context
        self._config_path = self.config.run_folder / "config.json"
        self.config.save_json(self._config_path)
        self.followers: list[Follower] = []
        self.process: ChildProcess | None = None

    def start(self) -> None:
        command = [sys.executable, "-P", "-c", PROGRAM, str(self._config_path)]
        self.process = ChildProcess(command, self.config.run_folder / "controller.log")
        address = ipc_address(self.config.run_folder, "controller")
        self.followers = [
            Follower(self._context, address, name) for name in ("router-0", "worker-0")
        ]

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None
        for follower in self.followers:
            follower.link.close()
        self.followers = []


class Trio:
    """Three controllers."""

    def __init__(self, folder: Path) -> None:
        self.context: Context = zmq.Context()
        peers = ",".join(f"{n}@127.0.0.1:{free_port()}" for n in range(3))
        self.members = [Member(self.context, folder / str(n), n, peers) for n in range(3)]
        self._next_id = 0

    def until(self, condition: Callable[[], object], what: str) -> None:
        def holds() -> object:
            for member in self.members:
                for follower in member.followers:
                    follower.look()
            return condition()

        wait_until(holds, what=what)

    def do_all_serve(self) -> bool:
        brokers = self.members[0].followers[0].image.brokers.values()
        return len(brokers) == 3 and not any(broker.is_fenced for broker in brokers)

    def leader(self) -> Member:
        """The leader, as node 0 knows it."""
        router = self.members[0].followers[0]
        found: list[int] = []

        def is_told() -> bool:
            self._next_id += 1
            router.link.socket.send(encode([DescribeQuorum(self._next_id)]))
            told = [m.state for m in router.heard if isinstance(m, QuorumDescribed)]
            found.extend(state.leader_id for state in told if state is not None)
            router.heard.clear()
            return bool(found)

        self.until(is_told, "there is a leader")
        return self.members[found[-1]]

    def create(self, at: Member, *names: str) -> None:
        """Create topics and wait until all are created."""
        router = at.followers[0]
        wanted = set()
        for name in names:
            self._next_id += 1
            wanted.add(self._next_id)
            topic = NewTopic(name, name.encode().ljust(16, b"-"), 1, 1)
            command = encode_command(CreateTopics((topic,)))
            router.link.socket.send(encode([SubmitCommand(self._next_id, command, FAR_MS)]))

        def are_answered() -> bool:
            answers = [m for m in router.heard if isinstance(m, CommandSubmitted)]
            replies = [decode_reply(answer.reply) for answer in answers]
            for reply in replies:
                assert isinstance(reply, TopicsReply)
                assert reply.results[0].error_code == 0, reply
            return wanted <= {answer.request_id for answer in answers}

        self.until(are_answered, "the topics are made")

    def close(self) -> None:
        for member in self.members:
            member.stop()
        self.context.term()


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    trio = Trio(tmp_path)
    yield trio
    trio.close()


def test_who_was_away_for_longer_than_the_log_reaches_is_sent_a_snapshot(trio: Trio) -> None:
    for member in trio.members:
        member.start()
    trio.until(trio.do_all_serve, "all nodes serve")
    leader = trio.leader()
    late = next(m for m in trio.members[1:] if m is not leader)
    trio.create(leader, *(f"early-{n}" for n in range(5)))
    late.stop()
    names = [f"late-{n}" for n in range(100)]
    for start in range(0, 100, 10):
        trio.create(leader, *names[start : start + 10])
    late.start()
    trio.create(leader, "last")
    router, wanted = late.followers[0], leader.followers[0]
    trio.until(lambda: "last" in router.image.topics_by_name, "the late one has all of it")
    trio.until(lambda: router.image.offset == wanted.image.offset, "all are equally far")
    assert have_same_content(router.image, wanted.image)
    assert set(names) <= set(router.image.topics_by_name)
    late.stop()
    log = MetadataLog.open(late.config.metadata_folder)
    assert log.snapshot is not None
    assert log.first_index == log.snapshot.index + 1, "its own ones leave entries before them"
    log.close()
