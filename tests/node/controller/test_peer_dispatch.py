"""The messages and connection events of other members are dispatched."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odradek.cluster.raft.configuration import member_id
from odradek.cluster.raft.messages import AppendRequest, FollowRequest, VoteRequest
from odradek.cluster.raft.ready import Role
from odradek.node.bus.messages import CommandSubmitted
from odradek.node.bus.peer_messages import (
    ForwardResponse,
    PeerDirectoryUpdate,
    PeerRejected,
    QuorumStateRequest,
    QuorumStateResponse,
)
from odradek.node.controller.command_forwarding import CommandForwarding
from odradek.node.controller.failure_detector import FailureDetector
from odradek.node.controller.peer_dispatch import PeerDispatch
from odradek.node.controller.quorum_view import QuorumView
from odradek.protocol.errors import ErrorCode
from tests.support.log_lines import log_text
from tests.support.peer_network import HELLO, PeerNetwork, PeerNode, wait_until_received
from tests.support.ports import free_port
from tests.support.raft_harness import RaftHarness, RaftMember
from tests.support.waiting import wait_until

JOINED = member_id(5, b"folder of node 5")


class QuorumMemberFixture:
    """A member of a quorum, and its peers over real TCP."""

    def __init__(self, member: RaftMember, peer_node: PeerNode) -> None:
        self.member = member
        self.peer_node = peer_node
        self.told: list[tuple[int, ...]] = []
        self.suspects: list[tuple[int, int]] = []
        self.submitted: list[CommandSubmitted] = []
        directory = peer_node.directory
        forwarding = CommandForwarding(
            own_id=member.node_id,
            send=directory.send,
            respond=lambda _identity, answer: self.submitted.append(answer),
        )
        quorum = QuorumView(
            member.driver,
            send=directory.send,
            respond=lambda _identity, _answer: None,
            wall_ms=lambda: 0,
            headers=directory,
        )
        self.failure_detector = FailureDetector(member.driver, member.node_id)
        self.neighbours = PeerDispatch(
            peer_node.config,
            directory,
            member.driver,
            forwarding,
            quorum,
            self.failure_detector,
            report_unreachable=self.told.append,
            suspect=lambda node_id, now_ms: self.suspects.append((node_id, now_ms)),
        )

    def dispatch(self) -> None:
        self.neighbours.dispatch({}, self.member.harness.now_ms)
        bus = self.peer_node.directory.bus
        assert bus is not None
        bus.flush()


@pytest.fixture
def network() -> Iterator[PeerNetwork]:
    network = PeerNetwork()
    yield network
    for peer_node in network.nodes:
        peer_node.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[RaftHarness]:
    harness = RaftHarness(tmp_path, [0])
    harness.elect()
    yield harness
    harness.close()


def guest(network: PeerNetwork, host: PeerNode) -> PeerNode:
    """Node 5, which has joined by the host's address."""
    return network.come(5, JOINED, join=str(host.address))


def until(fixture: QuorumMemberFixture, other: PeerNode, condition: Callable[[], bool]) -> None:
    def holds() -> bool:
        fixture.dispatch()
        other.listen()
        return condition()

    wait_until(holds, what="it has happened")


def test_a_follow_request_is_answered_with_entries_and_addresses(
    network: PeerNetwork, alone: RaftHarness
) -> None:
    fixture = QuorumMemberFixture(alone[0], network.come(0))
    other = guest(network, fixture.peer_node)
    leadership = alone[0].driver.node.leadership
    assert leadership is not None

    def is_fed() -> bool:
        other.directory.send(-1, FollowRequest(JOINED, -1, 0, 0))
        return JOINED in leadership.peers and any(
            isinstance(message, PeerDirectoryUpdate) for _, message in other.heard
        )

    until(fixture, other, is_fed)


def test_the_only_voter_ignores_other_leaders(
    network: PeerNetwork, alone: RaftHarness, caplog: pytest.LogCaptureFixture
) -> None:
    fixture = QuorumMemberFixture(alone[0], network.come(0))
    other = guest(network, fixture.peer_node)
    term = alone[0].driver.node.term

    def is_told() -> bool:
        other.directory.send(-1, VoteRequest(JOINED, 0, term + 5, 99, term + 4))
        other.directory.send(-1, AppendRequest(JOINED, 0, term + 5, 0, 0, (), 0))
        return "if the disk of this node was wiped" in log_text(caplog)

    until(fixture, other, is_told)
    assert (alone[0].driver.is_leader, alone[0].driver.node.term) == (True, term)


def test_requests_and_commands_are_dispatched(network: PeerNetwork, alone: RaftHarness) -> None:
    fixture = QuorumMemberFixture(alone[0], network.come(0))
    other = guest(network, fixture.peer_node)

    def is_answered() -> bool:
        other.directory.send(-1, QuorumStateRequest(7))
        other.directory.send(-1, HELLO)
        kinds = [type(message) for _, message in other.heard]
        return QuorumStateResponse in kinds and ForwardResponse in kinds

    until(fixture, other, is_answered)
    answers = [message for _, message in other.heard if isinstance(message, ForwardResponse)]
    assert answers[0].error_code == ErrorCode.NOT_CONTROLLER, "nobody decides here yet"


def test_a_broken_connection_is_reported_as_unreachable(
    network: PeerNetwork, alone: RaftHarness
) -> None:
    fixture = QuorumMemberFixture(alone[0], network.come(0))
    other = guest(network, fixture.peer_node)

    def is_met() -> bool:
        other.directory.send(-1, HELLO)
        return bool(other.heard)

    until(fixture, other, is_met)
    network.nodes.remove(other)
    other.close()

    def is_told() -> bool:
        fixture.dispatch()
        return fixture.told == [(5,)] and bool(fixture.suspects)

    wait_until(is_told, what="node 5 is doubtful, and suspect")
    assert fixture.suspects == [(5, alone.now_ms)]


def test_a_voter_campaigns_when_the_leaders_process_has_ended(
    network: PeerNetwork, tmp_path: Path
) -> None:
    harness = RaftHarness(tmp_path)
    ports = [free_port() for _ in range(3)]
    peers = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(ports))
    leader = harness.elect()
    harness.elapse(200)
    member = next(m for m in harness.members.values() if m is not leader)

    def come(node_id: int) -> PeerNode:
        return network.come(node_id, peers=peers, peer_listen=f"127.0.0.1:{ports[node_id]}")

    other, fixture = come(leader.node_id), QuorumMemberFixture(member, come(member.node_id))
    wait_until_received(network, fixture.peer_node, leader.node_id, other)
    network.nodes.remove(other)
    other.close()

    def is_noticed() -> int | None:
        fixture.dispatch()
        return fixture.failure_detector.next_deadline_ms()

    due_ms = wait_until(is_noticed, what="its end is noticed")
    assert due_ms is not None
    harness.now_ms = due_ms
    fixture.dispatch()
    assert member.driver.node.role is Role.CANDIDATE
    assert fixture.failure_detector.next_deadline_ms() is None
    harness.close()


@pytest.mark.parametrize("has_log", [True, False])
def test_a_bootstrap_voter_is_replaced_unless_it_started_a_cluster_of_its_own(
    network: PeerNetwork, tmp_path: Path, has_log: bool
) -> None:
    harness = RaftHarness(tmp_path, [0])
    if has_log:
        harness.elect()
    host = network.come(5, JOINED)
    host.refusal = PeerRejected("it is another now", is_replaced=True)
    fixture = QuorumMemberFixture(harness[0], network.come(0, join=str(host.address)))
    assert not fixture.neighbours.is_replaced
    bus = fixture.peer_node.directory.bus
    assert bus is not None

    def is_refused() -> bool:
        fixture.peer_node.directory.send(-1, HELLO)
        return bool(bus.replaced_by)

    until(fixture, host, is_refused)
    assert fixture.neighbours.is_replaced is not has_log
    harness.close()


def test_only_the_leader_can_reject_a_follower(network: PeerNetwork, tmp_path: Path) -> None:
    harness = RaftHarness(tmp_path)
    leader = harness.elect()
    harness.elapse(200)
    member = next(m for m in harness.members.values() if m is not leader)
    fixture = QuorumMemberFixture(member, network.come(member.node_id))
    bus = fixture.peer_node.directory.bus
    assert bus is not None
    stranger = next(n for n in harness.members if n not in (leader.node_id, member.node_id))
    believed = []
    for who in (stranger, leader.node_id):
        bus.replaced_by.add(who)
        believed.append(fixture.neighbours.is_replaced)
    assert believed == [False, True]
    harness.close()
