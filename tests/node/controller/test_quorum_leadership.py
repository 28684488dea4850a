"""The active controller begins with the first applied entry of its term and ends with the term."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.controller.commands import CreateTopics, NewTopic, encode_command
from odradek.cluster.metadata.delta import image_after
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import decode_records
from odradek.cluster.raft.configuration import member_id
from odradek.cluster.raft.messages import Entry
from odradek.node.bus.peer_messages import ForwardResponse
from odradek.node.controller.command_forwarding import CommandForwarding
from odradek.node.controller.failure_detector import FailureDetector
from odradek.node.controller.quorum_leadership import QuorumLeadership
from odradek.node.controller.raft_driver import RaftListener
from odradek.protocol.errors import ErrorCode
from tests.support.log_lines import log_text
from tests.support.peer_network import PeerNetwork
from tests.support.raft_harness import RaftHarness, RaftMember

FAR_MS = 10**9
JOINED = member_id(5, b"folder of node 5")
CREATE = encode_command(CreateTopics((NewTopic("a", b"a" * 16, 1, 1),)))


class Controller:
    """One member of a quorum, with what it needs to lead."""

    def __init__(self, member: RaftMember, network: PeerNetwork, *, node_id: int) -> None:
        self.member = member
        self.image = MetadataImage.empty()
        self.responses: list[ForwardResponse] = []
        options = {} if node_id == member.node_id else {"join": "127.0.0.1:1"}
        peer_node = network.come(node_id, member.node_id, **options)
        self.forwarding = CommandForwarding(
            own_id=member.node_id,
            send=peer_node.directory.send,
            respond=lambda _identity, _answer: None,
        )
        self.leadership = QuorumLeadership(
            peer_node.config,
            member.log,
            member.driver,
            directory=peer_node.directory,
            forwarding=self.forwarding,
            failure_detector=FailureDetector(member.driver, member.node_id),
            clock_ms=lambda: member.harness.now_ms,
            wall_ms=lambda: member.harness.now_ms,
        )
        member.listener = RaftListener(
            on_commit=self._on_commit,
            on_snapshot=lambda _index, _content: None,
            on_soft_state=self.leadership.on_soft_state,
            on_discard=self.forwarding.discard_after,
        )

    def _on_commit(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            if entry.is_configuration:
                self.leadership.on_configuration()
            active = self.leadership.active
            records = decode_records(entry.data) if entry.is_command else ()
            decided = None if active is None else active.committed(entry)
            self.image = decided or image_after(self.image, records, entry.index)
            self.leadership.on_applied(entry, self.image)

    def is_active(self) -> bool:
        return self.leadership.active is not None

    def submit(self) -> None:
        self.forwarding.submit_internal(CREATE, FAR_MS, self.responses.append, 0)

    def answer(self) -> list[int]:
        offset = self.image.offset
        self.forwarding.answer(self.member.harness.now_ms, committed=offset, applied=offset)
        return [response.error_code for response in self.responses]


@pytest.fixture
def network() -> Iterator[PeerNetwork]:
    network = PeerNetwork()
    yield network
    for peer_node in network.nodes:
        peer_node.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[RaftHarness]:
    harness = RaftHarness(tmp_path, [0])
    yield harness
    harness.close()


def test_a_command_is_decided_when_the_first_entry_of_the_term_is_applied(
    alone: RaftHarness, network: PeerNetwork
) -> None:
    controller = Controller(alone[0], network, node_id=0)
    controller.submit()
    assert not controller.is_active()
    alone.elect()
    alone.settle()
    assert controller.is_active()
    assert controller.image.cluster_id, "a new cluster is bootstrapped"
    assert controller.answer() == [ErrorCode.NONE]


def test_the_active_controller_ends_with_its_term(alone: RaftHarness, network: PeerNetwork) -> None:
    controller = Controller(alone[0], network, node_id=0)
    alone.elect()
    alone.settle()
    leadership = controller.leadership
    assert controller.is_active()
    leadership.on_soft_state(alone[0].driver.node.soft_state)
    assert controller.is_active(), "the same term"
    state = alone[0].driver.node.soft_state
    leadership.on_soft_state(type(state)(state.role, state.term + 1, state.leader_id))
    assert not controller.is_active()
    assert leadership.next_deadline_ms() is None


def test_a_node_that_lost_its_vote_is_warned_once(
    alone: RaftHarness, network: PeerNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    Controller(alone[0], network, node_id=0)
    joined = Controller(alone.start(JOINED), network, node_id=5)
    joined.leadership.on_configuration()
    assert log_text(caplog) == "", "the voters are not known yet"
    alone.elapse(1_000)
    joined.leadership.on_configuration()
    assert log_text(caplog).count("odradek node add 5") == 1
