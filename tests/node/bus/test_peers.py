"""Node to node over real TCP: who belongs together is heard, everybody else hears nothing."""

import logging
import os
import socket
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zmq

from odradek.cluster.raft.messages import AppendRequest, Entry
from odradek.node.bus.peer_messages import (
    PEER_VERSION,
    ForwardRequest,
    ForwardResponse,
    PeerHeader,
    PeerMessage,
    PeerRejected,
)
from odradek.node.bus.peers import PeerAddress, PeerBus, PeerBusError, Socket, cluster_keys
from tests.support.ports import free_port
from tests.support.waiting import wait_until

SECRET = "the secret of this very test"
REFUSED = PeerRejected("it is not wanted", is_replaced=True)
ENTRY = AppendRequest(0, 1, 3, 4, 2, (Entry(5, 3, b"data"),), 4)


class Town:
    """Nodes, each with its bus, and what they have heard."""

    def __init__(self) -> None:
        self.addresses = {n: PeerAddress("127.0.0.1", free_port()) for n in range(3)}
        self.buses: list[PeerBus] = []

    def node(
        self,
        node_id: int,
        *,
        secret: str = SECRET,
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
            secret=secret,
            watch=watch,
            refuses=lambda header: REFUSED if header.directory_id == "old" else None,
        )
        self.buses.append(bus)
        return bus

    def close(self) -> None:
        for bus in self.buses:
            bus.close()


@pytest.fixture
def town() -> Iterator[Town]:
    town = Town()
    yield town
    town.close()


def hears(bus: PeerBus, *others: PeerBus) -> list[tuple[int, PeerMessage]]:
    for one in (bus, *others):
        one.poll_events()
    return [(header.node_id, m) for header, messages in bus.receive() for m in messages]


def say(sender: PeerBus, receiver: PeerBus, to: int, message: PeerMessage) -> None:
    """Say it again and again until it arrives: what finds no connection is dropped."""

    def arrives() -> bool:
        sender.send(to, message)
        sender.flush()
        return message in [m for _, m in hears(receiver, sender)]

    wait_until(arrives, what="the message arrives")


def is_refused(sender: PeerBus, receiver: PeerBus, to: int, log: pytest.LogCaptureFixture) -> str:
    """Speak until the sender has been told why it is not listened to."""

    def told() -> str:
        sender.send(to, ForwardRequest(1, b"", 1))
        sender.flush()
        assert hears(receiver, sender) == []
        texts = [r.getMessage() for r in log.records if "rejects this node" in r.getMessage()]
        return texts[0] if texts else ""

    return wait_until(told, what="the sender is told")


@pytest.mark.parametrize("secret", [SECRET, ""], ids=["encrypted", "plain"])
def test_peers_hear_each_other_both_ways(town: Town, secret: str) -> None:
    a, b = town.node(0, secret=secret), town.node(1, secret=secret)
    say(a, b, 1, ENTRY)
    say(b, a, 0, ForwardResponse(1, 0, b"reply"))


def test_a_frame_carries_all_that_was_said_since_the_last_one(town: Town) -> None:
    a, b = town.node(0), town.node(1)
    say(a, b, 1, ENTRY)
    wanted = [ForwardRequest(number, b"c", 5) for number in range(100)]
    for message in wanted:
        a.send(1, message)
    a.flush()
    heard: list[tuple[int, PeerMessage]] = []

    def all_heard() -> bool:
        heard.extend(hears(b, a))
        return len(heard) >= len(wanted)

    wait_until(all_heard, what="all of it is heard")
    assert [m for _, m in heard if isinstance(m, ForwardRequest)] == wanted


def test_nothing_is_kept_for_a_peer_that_is_away(town: Town) -> None:
    a = town.node(0)
    for _ in range(50):
        a.send(1, ENTRY)
    a.flush()
    assert a.dropped_count == 50
    b = town.node(1)
    say(a, b, 1, ForwardRequest(1, b"", 1))
    assert hears(b, a) == []


def test_a_connection_made_again_is_told_of(town: Town) -> None:
    a, b = town.node(0), town.node(1)
    say(a, b, 1, ENTRY)
    town.buses.remove(b)
    b.close()
    again = town.node(1)

    def is_back() -> bool:
        again.poll_events()
        return 1 in a.poll_events()

    wait_until(is_back, what="connected anew")


def test_a_process_that_has_ended_is_told_of_once(town: Town) -> None:
    a, b = town.node(0), town.node(1)
    say(a, b, 1, ENTRY)
    assert a.take_stopped() == [], "node 2 was never there"
    town.buses.remove(b)
    b.close()

    def is_gone() -> list[int]:
        a.poll_events()
        return a.take_stopped()

    assert wait_until(is_gone, what="it is gone") == [1]
    b = town.node(1)
    say(a, b, 1, ENTRY)
    assert a.take_stopped() == []


def test_who_has_another_secret_is_not_heard_and_both_sides_say_so(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    a, stranger = town.node(0), town.node(1, secret="another secret of somebody else")

    def both_told() -> bool:
        stranger.send(0, ENTRY)
        stranger.flush()
        assert hears(a, stranger) == []
        text = caplog.text
        return "wrong or missing cluster secret" in text and "Set the same `cluster.secret`" in text

    wait_until(both_told, what="both sides say what is wrong")
    assert a.refused_count > 0


def test_who_says_nothing_is_not_said_to_have_another_secret(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a process that is stopped: the kernel takes its connections on."""
    frozen = town.addresses[1]
    with socket.create_server((frozen.host, frozen.port)):
        a = town.node(0)

        def is_told() -> bool:
            a.poll_events()
            return "node 1" in caplog.text

        wait_until(is_told, what="it is told that node 1 is silent")
    (record,) = [record for record in caplog.records if "node 1" in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert "did not answer" in record.getMessage()
    assert "secret" not in record.getMessage()
    say(a, town.node(1), 1, ENTRY)


@pytest.mark.parametrize("wrong", ["another secret of somebody else", ""], ids=["wrong", "none"])
def test_a_peer_whose_secret_was_put_right_is_connected_to_again(town: Town, wrong: str) -> None:
    a, b = town.node(0), town.node(1, secret=wrong)

    def has_failed() -> bool:
        b.poll_events()
        a.poll_events()
        return a.failed_count > 0

    wait_until(has_failed, what="they do not come together")
    town.buses.remove(b)
    b.close()
    say(a, town.node(1), 1, ENTRY)


def test_who_knows_no_secret_at_all_is_not_heard(town: Town) -> None:
    a, stranger = town.node(0), town.node(1, secret="")

    def is_turned_away() -> bool:
        stranger.send(0, ENTRY)
        stranger.flush()
        assert hears(a, stranger) == []
        return a.refused_count > 0

    wait_until(is_turned_away, what="the stranger is turned away")


def test_the_public_key_alone_opens_nothing(town: Town) -> None:
    """Somebody has got hold of the key that the handshake begins with, but not of the secret."""
    a = town.node(0)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    public, secret = zmq.curve_keypair()
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.CURVE_SERVERKEY, cluster_keys(SECRET).public)
    dealer.setsockopt(zmq.CURVE_PUBLICKEY, public)
    dealer.setsockopt(zmq.CURVE_SECRETKEY, secret)
    dealer.connect(f"tcp://{town.addresses[0]}")
    header = PeerHeader(PEER_VERSION, "ours", 1, "", 1)
    dealer.send_multipart([msgspec.msgpack.encode(header), msgspec.msgpack.encode([ENTRY])])

    def is_turned_away() -> bool:
        assert hears(a) == []
        return a.refused_count > 0

    wait_until(is_turned_away, what="the stranger is turned away")
    dealer.close(0)
    context.term()


def test_nonsense_from_strangers_changes_nothing_for_peers(town: Town) -> None:
    a, b = town.node(0), town.node(1)
    for _ in range(20):
        with socket.create_connection(town.addresses[1]) as stranger:
            stranger.sendall(os.urandom(500))
    say(a, b, 1, ENTRY)


def test_a_node_of_another_cluster_is_refused_with_the_reason(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    a, stranger = town.node(0), town.node(1, cluster_id="theirs")
    text = is_refused(stranger, a, 0, caplog)
    assert "belongs to cluster theirs" in text
    assert "same `cluster.id`" in text


def test_a_node_with_another_number_of_stores_is_refused(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    a, other = town.node(0), town.node(1, store_count=4)
    text = is_refused(other, a, 0, caplog)
    assert "node 1 was formatted with 4 stores, node 0 with 8" in text


def test_a_connection_that_breaks_is_known_until_it_is_there_again(town: Town) -> None:
    a, b = town.node(0), town.node(1)
    say(a, b, 1, ENTRY)
    assert a.disconnected_since == {}
    town.buses.remove(b)
    b.close()

    def is_broken() -> bool:
        a.poll_events()
        return list(a.disconnected_since) == [1]

    wait_until(is_broken, what="the break is noticed")
    again = town.node(1)
    say(a, again, 1, ENTRY)
    assert a.disconnected_since == {}


def test_who_knows_the_secret_is_heard_and_can_be_answered(town: Town) -> None:
    """A node that joins: nobody was told of it."""
    a, joining = town.node(0, peers=(0, 1)), town.node(2)
    say(joining, a, 0, ENTRY)
    a.connect(2, town.addresses[2])
    say(a, joining, 2, ENTRY)


def test_a_member_that_has_moved_is_spoken_to_where_it_is(town: Town) -> None:
    a, b = town.node(0), town.node(1)
    say(a, b, 1, ENTRY)
    town.buses.remove(b)
    b.close()
    town.addresses[1] = PeerAddress("127.0.0.1", free_port())
    moved = town.node(1)
    a.connect(1, town.addresses[1])
    say(a, moved, 1, ENTRY)


def test_who_is_given_up_hears_nothing_more_and_its_sockets_are_told_of(town: Town) -> None:
    watched: dict[object, bool] = {}
    a, b = town.node(0, watch=watched.__setitem__), town.node(1)
    say(a, b, 1, ENTRY)
    before = set(watched)
    a.disconnect(1)
    assert sorted(a.others) == [2]
    assert list(watched.values()).count(False) == 2
    assert set(watched) == before
    a.send(1, ENTRY)
    a.flush()
    assert hears(b, a) == []


def test_a_replica_of_another_node_is_refused(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    a, liar = town.node(0), town.node(1, member=2)
    assert "metadata replica of another node" in is_refused(liar, a, 0, caplog)


def test_a_second_node_of_our_own_id_is_refused(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    a, double = town.node(0), town.node(1, claims=0)
    assert "Give each node its own `node.id`" in is_refused(double, a, 0, caplog)


def test_another_version_is_refused(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    a, newer = town.node(0), town.node(1, version=PEER_VERSION + 1)
    assert "Run compatible releases" in is_refused(newer, a, 0, caplog)


def test_the_owner_may_refuse_a_peer(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    a, wiped = town.node(0), town.node(1, directory_id="old")
    assert not wiped.replaced_by
    assert "it is not wanted" in is_refused(wiped, a, 0, caplog)
    assert wiped.replaced_by == {0}


def test_an_address_in_use_is_told(town: Town) -> None:
    town.node(0)
    with pytest.raises(PeerBusError, match=r"peer\.listen=127\.0\.0\.1:\d+: .*in use"):
        town.node(0)


def test_the_same_secret_makes_the_same_keys_and_another_makes_others() -> None:
    assert cluster_keys(SECRET) == cluster_keys(SECRET)
    assert cluster_keys(SECRET).secret != cluster_keys(SECRET + "x").secret
    assert len(cluster_keys(SECRET).public) == 40
