"""A command's way to the leader and its response's way back, with all failures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.controller.commands import (
    AllocateProducerIds,
    Command,
    CreateTopics,
    NewTopic,
    RegisterBroker,
    encode_command,
)
from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import ClusterCreated
from odradek.node.bus.messages import CommandSubmitted, SubmitCommand
from odradek.node.bus.peer_messages import ControlMessage, ForwardRequest, ForwardResponse
from odradek.node.controller.active_controller import ActiveController
from odradek.node.controller.command_forwarding import RESEND_MS, RETRY_MS, CommandForwarding
from odradek.protocol.errors import ErrorCode
from tests.support.raft_harness import PeerHeaders, RaftHarness, RaftMember

FAR_MS = 1_000_000
STALE = AllocateProducerIds(0, -5)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RaftHarness]:
    harness = RaftHarness(tmp_path, [0])
    harness[0].driver.tick(harness.now_ms)
    harness.settle()
    yield harness
    harness.close()


class Office:
    """The pending commands of node 0, and all that is sent for them."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, ControlMessage]] = []
        self.told: list[tuple[bytes, CommandSubmitted]] = []
        self.now_ms = 0
        self.forwarding = CommandForwarding(
            own_id=0,
            send=lambda to, message: self.sent.append((to, message)),
            respond=lambda identity, answer: self.told.append((identity, answer)),
        )

    def submit(self, command: Command, *, request_id: int = 1, deadline_ms: int = FAR_MS) -> None:
        message = SubmitCommand(request_id, encode_command(command), deadline_ms)
        self.forwarding.submit(b"router", message, self.now_ms)

    def forwarded(self) -> list[ForwardRequest]:
        """What was sent to the leader since it was last asked for."""
        found = [message for _, message in self.sent if isinstance(message, ForwardRequest)]
        self.sent.clear()
        return found

    def settle(self, applied: int = 0, reached: int | None = None) -> list[int]:
        """The error codes of the answers that have been given by now."""
        self.forwarding.answer(
            self.now_ms, committed=applied, applied=applied if reached is None else reached
        )
        return [answer.error_code for _, answer in self.told]


def active_controller_of(member: RaftMember, *, has_space: bool = True) -> ActiveController:
    image = MetadataDelta(MetadataImage.empty()).apply(member.driver.node.log.last_index)
    spaces = [True]
    active = ActiveController(
        member.driver,
        image,
        term=member.driver.node.term,
        node_id=0,
        static={},
        has_space=lambda _size: spaces[0],
        headers=PeerHeaders(),
    )
    active.propose([ClusterCreated("c")], frees_space=True)
    active.decide(RegisterBroker(0, b"i" * 16), 0)
    spaces[0] = has_space
    return active


def topic(name: str) -> CreateTopics:
    return CreateTopics((NewTopic(name, name.encode().ljust(16, b"-"), 1, 1),))


# -- at a node that does not lead ----------------------------------------------------------------


def test_a_command_is_queued_until_there_is_a_leader() -> None:
    office = Office()
    office.submit(topic("a"))
    assert office.forwarded() == []
    office.forwarding.set_leader(2, None, office.now_ms)
    (forward,) = office.forwarded()
    assert forward.command == encode_command(topic("a"))
    assert forward.timeout_ms == FAR_MS


def test_a_response_waits_until_this_nodes_processes_have_applied_it() -> None:
    office = Office()
    office.forwarding.set_leader(2, None, 0)
    office.submit(topic("a"), request_id=7)
    (forward,) = office.forwarded()
    office.forwarding.on_response(ForwardResponse(forward.request_id, 0, b"reply", None, 30), 0)
    assert office.settle(applied=30, reached=29) == []
    assert office.settle(applied=30, reached=30) == [0]
    ((identity, answer),) = office.told
    assert (identity, answer.request_id, answer.reply) == (b"router", 7, b"reply")
    assert len(office.forwarding) == 0


def test_a_command_is_forwarded_again_to_a_new_leader() -> None:
    office = Office()
    office.forwarding.set_leader(2, None, 0)
    office.submit(topic("a"))
    (first,) = office.forwarded()
    office.forwarding.set_leader(None, None, 0)
    office.forwarding.set_leader(1, None, 0)
    assert office.sent[-1][0] == 1
    (second,) = office.forwarded()
    assert second.command == first.command


def test_not_controller_leads_to_a_retry() -> None:
    office = Office()
    office.forwarding.set_leader(2, None, 0)
    office.submit(topic("a"))
    (forward,) = office.forwarded()
    office.forwarding.on_response(ForwardResponse(forward.request_id, ErrorCode.NOT_CONTROLLER), 0)
    office.settle()
    assert office.forwarded() == []
    office.now_ms = RETRY_MS
    assert office.forwarding.next_deadline_ms() == RETRY_MS
    office.settle()
    assert len(office.forwarded()) == 1


def test_a_missing_response_or_a_new_connection_leads_to_a_retry() -> None:
    office = Office()
    office.forwarding.set_leader(2, None, 0)
    office.submit(topic("a"))
    (first,) = office.forwarded()
    office.forwarding.member_reconnected(1, 0)
    assert office.forwarded() == []
    office.forwarding.member_reconnected(2, 0)
    assert [again.request_id for again in office.forwarded()] == [first.request_id]
    office.now_ms = RESEND_MS
    office.settle()
    assert [again.request_id for again in office.forwarded()] == [first.request_id]


def test_a_late_response_is_ignored_after_the_deadline() -> None:
    office = Office()
    office.forwarding.set_leader(2, None, 0)
    office.submit(topic("a"), deadline_ms=100)
    (forward,) = office.forwarded()
    office.now_ms = 100
    assert office.settle() == [ErrorCode.REQUEST_TIMED_OUT]
    office.forwarding.on_response(ForwardResponse(forward.request_id, 0, b"late"), 100)
    assert len(office.settle()) == 1


def test_a_forwarded_command_is_refused_by_a_follower() -> None:
    office = Office()
    office.forwarding.submit_forwarded(
        1, 1, ForwardRequest(5, encode_command(topic("a")), 1_000), 0
    )
    assert office.sent == [(1, ForwardResponse(5, ErrorCode.NOT_CONTROLLER))]


# -- at the leader -------------------------------------------------------------------------------


def test_the_leader_decides_at_once_and_answers_when_it_is_committed(harness: RaftHarness) -> None:
    office = Office()
    active = active_controller_of(harness[0])
    office.forwarding.set_leader(0, active, 0)
    office.submit(topic("a"))
    index = active.index
    assert office.settle(applied=index - 1) == []
    assert office.settle(applied=index, reached=index - 1) == []
    assert office.settle(applied=index) == [0]


def test_an_error_waits_for_the_commit_but_for_no_process(
    harness: RaftHarness,
) -> None:
    """If leadership were lost now, the refusal might be wrong."""
    office = Office()
    active = active_controller_of(harness[0])
    office.forwarding.set_leader(0, active, 0)
    office.submit(STALE)
    assert office.settle(applied=active.index - 1) == []
    assert office.settle(applied=active.index, reached=0) == [ErrorCode.STALE_BROKER_EPOCH]


def test_a_peers_command_is_answered_to_it_when_it_is_committed_here(harness: RaftHarness) -> None:
    office = Office()
    active = active_controller_of(harness[0])
    office.forwarding.set_leader(0, active, 0)
    forward = ForwardRequest(5, encode_command(topic("a")), 1_000)
    office.forwarding.submit_forwarded(1, 9, forward, 0)
    before = active.index
    office.forwarding.submit_forwarded(1, 9, forward, 0)
    assert active.index == before, "the same command again is not decided again"
    office.settle(applied=active.index, reached=0)
    ((to, carried),) = office.sent
    assert isinstance(carried, ForwardResponse)
    assert (to, carried.request_id, carried.error_code) == (1, 5, 0)
    assert carried.offset == active.index


def test_uncommitted_commands_are_queued_again_when_leadership_is_lost(
    harness: RaftHarness,
) -> None:
    office = Office()
    office.forwarding.set_leader(0, active_controller_of(harness[0]), 0)
    office.submit(topic("a"))
    office.forwarding.submit_forwarded(
        1, 9, ForwardRequest(5, encode_command(topic("b")), 1_000), 0
    )
    office.forwarding.set_leader(2, None, 0)
    assert (1, ForwardResponse(5, ErrorCode.NOT_CONTROLLER)) in office.sent
    assert [forward.command for forward in office.forwarded()] == [encode_command(topic("a"))]
    assert office.settle(applied=1_000) == []


def test_a_peers_command_is_refused_when_another_node_leads(tmp_path: Path) -> None:
    """The peer sends it to the next leader itself: otherwise the command would run twice."""
    three = RaftHarness(tmp_path, [0, 1, 2])
    leader = three.elect()
    office = Office()
    office.forwarding.set_leader(0, active_controller_of(leader), 0)
    leader.driver.resign()
    office.forwarding.submit_forwarded(
        1, 9, ForwardRequest(6, encode_command(topic("a")), 1_000), 0
    )
    assert office.sent == [], "nothing can be decided, and nobody else is known"
    office.forwarding.set_leader(2, None, 0)
    assert office.sent == [(1, ForwardResponse(6, ErrorCode.NOT_CONTROLLER))]
    assert len(office.forwarding) == 0
    three.close()


def test_a_command_discarded_on_a_full_disk_is_answered_so(harness: RaftHarness) -> None:
    office = Office()
    active = active_controller_of(harness[0])
    office.forwarding.set_leader(0, active, 0)
    durable = active.index
    office.submit(topic("a"))
    office.forwarding.discard_after(durable)
    assert office.settle() == [ErrorCode.KAFKA_STORAGE_ERROR]
    full = Office()
    full.forwarding.set_leader(0, active_controller_of(harness[0], has_space=False), 0)
    full.submit(topic("b"))
    assert full.settle() == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_command_of_a_newer_release_is_refused_by_name(harness: RaftHarness) -> None:
    office = Office()
    office.forwarding.set_leader(0, active_controller_of(harness[0]), 0)
    office.forwarding.submit_forwarded(1, 9, ForwardRequest(5, b"\x91\xa7Unknown", 1_000), 0)
    office.settle()
    ((_, carried),) = office.sent
    assert isinstance(carried, ForwardResponse)
    assert carried.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "Node 0 does not support this command" in (carried.error_message or "")
