"""Node to node over real TCP: nodes of one cluster exchange messages, others are rejected."""

import logging
import os
import socket
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zmq

from odradek.cluster.raft.messages import AppendRequest, Entry
from odradek.node.bus.curve import cluster_keys
from odradek.node.bus.endpoint import Socket
from odradek.node.bus.peer_messages import (
    PEER_VERSION,
    ForwardRequest,
    ForwardResponse,
    PeerHeader,
    PeerMessage,
    PeerRejected,
)
from odradek.node.bus.peers import PeerAddress, PeerBus, PeerBusError
from tests.support.log_lines import log_lines, log_text
from tests.support.ports import free_port
from tests.support.waiting import wait_until

SECRET = "the secret of this very test"
REFUSED = PeerRejected("it is not wanted", is_replaced=True)
ENTRY = AppendRequest(0, 1, 3, 4, 2, (Entry(5, 3, b"data"),), 4)


class Nodes:
    """The nodes of a test, each with its bus."""

    def __init__(self) -> None:
        self.addresses = {n: PeerAddress("127.0.0.1", free_port()) for n in range(3)}
        self.buses: list[PeerBus] = []

    def node(
        self,
        node_id: int,
        *,
        secret: str = SECRET,
        secrets: tuple[str, ...] = (),
        cluster_id: str = "ours",
        version: int = PEER_VERSION,
        peers: tuple[int, ...] = (0, 1, 2),
        directory_id: str = "",
        claims: int | None = None,
        store_count: int = 8,
        member: int | None = None,
        watch: Callable[[Socket, bool], None] = lambda _socket, _is_new: None,
    ) -> PeerBus:
        own_id = node_id if claims is None else claims
        header = PeerHeader(
            version,
            cluster_id,
            own_id,
            directory_id,
            1,
            store_count,
            own_id if member is None else member,
        )
        bus = PeerBus(
            header=header,
            listen=self.addresses[node_id],
            others={n: self.addresses[n] for n in peers if n != node_id},
            secrets=secrets or tuple(filter(None, (secret,))),
            watch=watch,
            refuses=lambda header: REFUSED if header.directory_id == "old" else None,
        )
        self.buses.append(bus)
        return bus

    def close(self) -> None:
        for bus in self.buses:
            bus.close()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


def receive(bus: PeerBus, *others: PeerBus) -> list[tuple[int, PeerMessage]]:
    for one in (bus, *others):
        one.poll_events()
    return [(header.node_id, m) for header, messages in bus.receive() for m in messages]


def send_until_received(sender: PeerBus, receiver: PeerBus, to: int, message: PeerMessage) -> None:
    """Send until the message is received. Without a connection it is dropped."""

    def arrives() -> bool:
        sender.send(to, message)
        sender.flush()
        return message in [m for _, m in receive(receiver, sender)]

    wait_until(arrives, what="the message is received")


def rejection_of(sender: PeerBus, receiver: PeerBus, to: int, log: pytest.LogCaptureFixture) -> str:
    """Send until the sender has logged why it is rejected. Returns the log line."""

    def logged() -> str:
        sender.send(to, ForwardRequest(1, b"", 1))
        sender.flush()
        assert receive(receiver, sender) == []
        texts = [r for r in log_lines(log) if "rejects this node" in r]
        return texts[0] if texts else ""

    return wait_until(logged, what="the sender is rejected")


@pytest.mark.parametrize("secret", [SECRET, ""], ids=["encrypted", "plain"])
def test_messages_arrive_in_both_directions(nodes: Nodes, secret: str) -> None:
    a, b = nodes.node(0, secret=secret), nodes.node(1, secret=secret)
    send_until_received(a, b, 1, ENTRY)
    send_until_received(b, a, 0, ForwardResponse(1, 0, b"reply"))


def test_a_frame_has_all_messages_since_the_last_flush(nodes: Nodes) -> None:
    a, b = nodes.node(0), nodes.node(1)
    send_until_received(a, b, 1, ENTRY)
    wanted = [ForwardRequest(number, b"c", 5) for number in range(100)]
    for message in wanted:
        a.send(1, message)
    a.flush()
    received: list[tuple[int, PeerMessage]] = []

    def all_received() -> bool:
        received.extend(receive(b, a))
        return len(received) >= len(wanted)

    wait_until(all_received, what="all of it is received")
    assert [m for _, m in received if isinstance(m, ForwardRequest)] == wanted


def test_nothing_is_queued_for_a_peer_that_is_not_connected(nodes: Nodes) -> None:
    a = nodes.node(0)
    for _ in range(50):
        a.send(1, ENTRY)
    a.flush()
    assert a.dropped_count == 50
    b = nodes.node(1)
    send_until_received(a, b, 1, ForwardRequest(1, b"", 1))
    assert ENTRY not in [message for _, message in receive(b, a)]


def test_a_reconnection_is_reported(nodes: Nodes) -> None:
    a, b = nodes.node(0), nodes.node(1)
    send_until_received(a, b, 1, ENTRY)
    nodes.buses.remove(b)
    b.close()
    again = nodes.node(1)

    def is_back() -> bool:
        again.poll_events()
        return 1 in a.poll_events()

    wait_until(is_back, what="connected anew")


def test_a_process_that_has_ended_is_reported_once(nodes: Nodes) -> None:
    a, b = nodes.node(0), nodes.node(1)
    send_until_received(a, b, 1, ENTRY)
    assert a.take_stopped() == [], "node 2 was never there"
    nodes.buses.remove(b)
    b.close()

    def has_stopped() -> list[int]:
        a.poll_events()
        return a.take_stopped()

    assert wait_until(has_stopped, what="the process has stopped") == [1]
    b = nodes.node(1)
    send_until_received(a, b, 1, ENTRY)
    assert a.take_stopped() == []


def test_a_peer_with_another_secret_is_rejected_and_both_sides_log_it(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    a, other = nodes.node(0), nodes.node(1, secret="another secret")

    def both_told() -> bool:
        other.send(0, ENTRY)
        other.flush()
        assert receive(a, other) == []
        text = log_text(caplog)
        return "wrong or missing cluster secret" in text and "set the same `cluster.secret`" in text

    wait_until(both_told, what="both sides say what is wrong")
    assert a.refused_count > 0


def test_a_peer_that_does_not_answer_is_not_logged_as_one_with_another_secret(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    """Like a process that is stopped: the kernel accepts its connections."""
    frozen = nodes.addresses[1]
    with socket.create_server((frozen.host, frozen.port)):
        a = nodes.node(0)

        def is_told() -> bool:
            a.poll_events()
            return "peer_node=1" in log_text(caplog)

        wait_until(is_told, what="it is told that node 1 is silent")
    (record,) = [record for record in caplog.records if getattr(record, "peer_node", None) == 1]
    assert record.levelno == logging.WARNING
    assert "did not answer" in record.getMessage()
    assert "secret" not in log_text(caplog)
    send_until_received(a, nodes.node(1), 1, ENTRY)


@pytest.mark.parametrize("wrong", ["another secret", ""], ids=["wrong", "none"])
def test_a_peer_whose_secret_was_corrected_is_connected_again(nodes: Nodes, wrong: str) -> None:
    a, b = nodes.node(0), nodes.node(1, secret=wrong)

    def has_failed() -> bool:
        b.poll_events()
        a.poll_events()
        return a.failed_count > 0

    wait_until(has_failed, what="they do not come together")
    nodes.buses.remove(b)
    b.close()
    send_until_received(a, nodes.node(1), 1, ENTRY)


def test_a_peer_without_a_secret_is_rejected(nodes: Nodes) -> None:
    a, other = nodes.node(0), nodes.node(1, secret="")

    def is_rejected() -> bool:
        other.send(0, ENTRY)
        other.flush()
        assert receive(a, other) == []
        return a.refused_count > 0

    wait_until(is_rejected, what="the other is rejected")


def test_a_client_with_only_the_public_key_is_rejected(nodes: Nodes) -> None:
    """The client has the key that the handshake begins with, but not the secret."""
    a = nodes.node(0)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    public, secret = zmq.curve_keypair()
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.CURVE_SERVERKEY, cluster_keys([SECRET])[0].public)
    dealer.setsockopt(zmq.CURVE_PUBLICKEY, public)
    dealer.setsockopt(zmq.CURVE_SECRETKEY, secret)
    dealer.connect(f"tcp://{nodes.addresses[0]}")
    header = PeerHeader(PEER_VERSION, "ours", 1, "", 1)
    dealer.send_multipart([msgspec.msgpack.encode(header), msgspec.msgpack.encode([ENTRY])])

    def is_rejected() -> bool:
        assert receive(a) == []
        return a.refused_count > 0

    wait_until(is_rejected, what="the other is rejected")
    dealer.close(0)
    context.term()


NEXT = "the secret that comes after it"


def change_secrets(bus: PeerBus, *secrets: str) -> None:
    bus.change_secrets(secrets, bus._own)


def wait_until_all_talk(buses: list[PeerBus]) -> None:
    """Every node receives from every other one."""
    wanted = {(sender, to) for sender in range(3) for to in range(3) if sender != to}
    received: set[tuple[int, int]] = set()

    def all_received() -> bool:
        for sender, bus in enumerate(buses):
            for to in bus.others:
                bus.send(to, ENTRY)
            bus.flush()
            bus.poll_events()
            received.update((header.node_id, sender) for header, _ in bus.receive())
        return received == wanted

    wait_until(all_received, what="every node receives from every other one")


def test_the_secret_is_replaced_while_the_nodes_talk(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    buses = [nodes.node(node_id) for node_id in range(3)]
    wait_until_all_talk(buses)
    for secrets in [(SECRET, NEXT), (NEXT, SECRET), (NEXT,)]:
        for bus in buses:
            change_secrets(bus, *secrets)
            # One node after the other: those that have done it talk with those that have not.
            wait_until_all_talk(buses)
    assert [bus.take_stopped() for bus in buses] == [[], [], []], "no process has ended"
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_node_with_the_replaced_secret_is_disconnected_and_logged_once(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    buses = [nodes.node(node_id) for node_id in range(3)]
    wait_until_all_talk(buses)
    late, left = buses[2], buses[:2]
    for secrets in [(SECRET, NEXT), (NEXT, SECRET), (NEXT,)]:
        for bus in left:
            change_secrets(bus, *secrets)

    def is_refused() -> bool:
        for bus in buses:
            bus.poll_events()
        return late.failed_count > 30 and min(bus.refused_count for bus in left) > 10

    wait_until(is_refused, what="the node is refused again and again")
    list(left[0].receive())
    late.send(0, ForwardRequest(7, b"", 1))
    late.flush()
    assert receive(left[0], late) == []
    texts = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    # Each node says once whom it has rejected, and once whom it does not reach.
    assert sum("wrong or missing cluster secret" in text for text in texts) == 3
    unreached = [
        record.__dict__["peer_node"]
        for record in caplog.records
        if record.getMessage().startswith("the handshake with")
    ]
    assert sorted(unreached) == [0, 1, 2, 2]
    assert len(texts) == 7


def test_malformed_frames_of_other_clients_do_not_disturb_peers(nodes: Nodes) -> None:
    a, b = nodes.node(0), nodes.node(1)
    for _ in range(20):
        with socket.create_connection(nodes.addresses[1]) as other:
            other.sendall(os.urandom(500))
    send_until_received(a, b, 1, ENTRY)


def test_a_node_of_another_cluster_is_rejected_with_the_reason(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    a, other = nodes.node(0), nodes.node(1, cluster_id="theirs")
    text = rejection_of(other, a, 0, caplog)
    assert "belongs to cluster theirs" in text
    assert "same `cluster.id`" in text


def test_a_node_with_another_number_of_stores_is_rejected(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    a, other = nodes.node(0), nodes.node(1, store_count=4)
    text = rejection_of(other, a, 0, caplog)
    assert "node 1 was formatted with 4 stores, node 0 with 8" in text


def test_a_broken_connection_is_reported_until_it_is_restored(nodes: Nodes) -> None:
    a, b = nodes.node(0), nodes.node(1)
    send_until_received(a, b, 1, ENTRY)
    assert a.disconnected_since == {}
    nodes.buses.remove(b)
    b.close()

    def is_broken() -> bool:
        a.poll_events()
        return list(a.disconnected_since) == [1]

    wait_until(is_broken, what="the break is noticed")
    again = nodes.node(1)
    send_until_received(a, again, 1, ENTRY)
    assert a.disconnected_since == {}


def test_an_unknown_node_with_the_secret_is_received_and_can_be_connected(nodes: Nodes) -> None:
    """A node that joins: the other does not know its address."""
    a, joining = nodes.node(0, peers=(0, 1)), nodes.node(2)
    send_until_received(joining, a, 0, ENTRY)
    a.connect(2, nodes.addresses[2])
    send_until_received(a, joining, 2, ENTRY)


def test_a_member_that_has_moved_is_connected_at_its_new_address(nodes: Nodes) -> None:
    a, b = nodes.node(0), nodes.node(1)
    send_until_received(a, b, 1, ENTRY)
    nodes.buses.remove(b)
    b.close()
    nodes.addresses[1] = PeerAddress("127.0.0.1", free_port())
    moved = nodes.node(1)
    a.connect(1, nodes.addresses[1])
    send_until_received(a, moved, 1, ENTRY)


def test_a_disconnected_member_gets_no_messages_and_its_sockets_are_unwatched(nodes: Nodes) -> None:
    watched: dict[object, bool] = {}
    a, b = nodes.node(0, watch=watched.__setitem__), nodes.node(1)
    send_until_received(a, b, 1, ENTRY)
    before = set(watched)
    a.disconnect(1)
    assert sorted(a.others) == [2]
    assert list(watched.values()).count(False) == 2
    assert set(watched) == before
    later = ForwardRequest(2, b"", 1)
    a.send(1, later)
    a.flush()
    assert later not in [message for _, message in receive(b, a)]


def test_a_replica_of_another_node_is_rejected(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    a, other = nodes.node(0), nodes.node(1, member=2)
    assert "metadata replica of another node" in rejection_of(other, a, 0, caplog)


def test_a_node_with_our_own_id_is_rejected(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    a, double = nodes.node(0), nodes.node(1, claims=0)
    assert "Give each node its own `node.id`" in rejection_of(double, a, 0, caplog)


def test_another_version_is_rejected(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    a, newer = nodes.node(0), nodes.node(1, version=PEER_VERSION + 1)
    assert "Run compatible releases" in rejection_of(newer, a, 0, caplog)


def test_the_owner_may_reject_a_peer(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    a, wiped = nodes.node(0), nodes.node(1, directory_id="old")
    assert not wiped.replaced_by
    assert "it is not wanted" in rejection_of(wiped, a, 0, caplog)
    assert wiped.replaced_by == {0}


def test_an_address_in_use_is_an_error(nodes: Nodes) -> None:
    nodes.node(0)
    with pytest.raises(PeerBusError, match=r"peer\.listen=127\.0\.0\.1:\d+: .*in use"):
        nodes.node(0)
