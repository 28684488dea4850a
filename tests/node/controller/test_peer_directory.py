"""Nodes that connect over real TCP, by addresses from every source."""

from collections.abc import Iterator

import msgspec
import pytest

from odradek.cluster.raft.configuration import Configuration, Voter, member_id
from odradek.cluster.raft.messages import ALL_MEMBERS, FollowRequest
from odradek.node.bus.peer_messages import MemberAddress, PeerDirectoryUpdate
from odradek.node.bus.peers import PeerAddress
from odradek.node.config import load
from odradek.node.controller.peer_directory import EXPIRY_MS, PeerDirectory
from odradek.node.controller.voter_changes import VoterContext, encode_context
from tests.support.peer_network import (
    HELLO,
    SECRET,
    PeerNetwork,
    PeerNode,
    wait_until_received,
)
from tests.support.ports import free_port
from tests.support.waiting import wait_until


@pytest.fixture
def network() -> Iterator[PeerNetwork]:
    network = PeerNetwork()
    yield network
    for peer_node in network.nodes:
        peer_node.close()


REPLICA = member_id(5, b"folder of node 5")


def test_a_joining_member_gets_the_addresses_of_the_others(network: PeerNetwork) -> None:
    third = network.come(2)
    listen = f"127.0.0.1:{free_port()}"
    first = network.come(0, peers=f"0@{listen},2@{third.address}", peer_listen=listen)
    joining = network.come(5, REPLICA, join=str(first.address))
    assert joining.known == {-1: first.address}

    def is_told() -> bool:
        joining.directory.send(ALL_MEMBERS, FollowRequest(REPLICA, ALL_MEMBERS, 0, 0))
        network.talk()
        return joining.known == {0: first.address, 2: third.address}

    wait_until(is_told, what="it knows everybody, and no address twice")
    wait_until_received(network, first, REPLICA, joining)
    wait_until_received(network, joining, 2, third)
    assert third.known == {0: first.address, REPLICA: joining.address}
    header = third.directory.header_of(REPLICA)
    assert header is not None
    assert (header.node_id, header.port) == (5, joining.config.peer_port)


def test_members_say_which_secrets_they_have(network: PeerNetwork) -> None:
    """Until all have the same in the same order, the next step of replacing one is not safe.
    Followers have nothing else to tell each other."""
    following = "the secret that comes after it"
    first = network.come(0)
    second = network.come(1, join=str(first.address))

    def change(peer_node: PeerNode, secrets: tuple[str, ...], wanted: list[int]) -> None:
        config = msgspec.structs.replace(peer_node.config, cluster_secrets=secrets)
        peer_node.directory.change_secrets(config)

        def is_told() -> bool:
            network.talk()
            return [each.directory.other_secrets_count for each in network.nodes] == wanted

        wait_until(is_told, what="both know the other's secrets")

    wait_until_received(network, second, -1, first)
    wait_until_received(network, first, 1, second)
    for secrets in [(SECRET, following), (following, SECRET), (following,)]:
        change(first, secrets, [1, 1])
        change(second, secrets, [0, 0])
    assert first.directory.bus is not None
    assert first.watched == set(first.directory.bus.sockets)


def test_a_restarted_member_says_which_secrets_it_has(network: PeerNetwork) -> None:
    """A follower that comes back with what is in its configuration now, and with nothing to say to
    the other follower, which has heard it before."""
    following = "the secret that comes after it"
    other = network.come(0, cluster_secret=f"{SECRET}\n{following}")
    before = network.come(1, join=str(other.address))
    wait_until_received(network, before, -1, other)
    assert other.directory.other_secrets_count == 1
    network.nodes.remove(before)
    before.close()
    after = network.come(
        1,
        peers=f"0@{other.address},1@{before.address}",
        peer_listen=str(before.address),
        cluster_secret=f"{SECRET}\n{following}",
    )

    def is_told() -> bool:
        network.talk()
        # The one has heard the other before, the other nobody.
        is_heard = after.directory.header_of(0) is not None
        counts = [each.directory.other_secrets_count for each in network.nodes]
        return is_heard and counts == [0, 0]

    wait_until(is_told, what="each knows the other's secrets")


def test_voters_are_connected_at_the_addresses_of_the_log(network: PeerNetwork) -> None:
    later, joining = network.come(4), network.come(5, REPLICA)
    place = encode_context(VoterContext(bytes(16), *later.address))
    own = encode_context(VoterContext(bytes(16), *joining.address))
    configuration = Configuration((Voter(4, place), Voter(5, own), Voter(9), Voter(REPLICA, own)))
    joining.directory.update_voters(configuration)
    assert joining.known == {4: later.address}
    wait_until_received(network, joining, 4, later)


def test_a_members_own_header_overrides_reported_addresses(
    network: PeerNetwork,
) -> None:
    moved, joining = network.come(4), network.come(5, REPLICA)
    for peer_node in (moved, joining):
        peer_node.directory.add_reported(
            PeerDirectoryUpdate(
                (MemberAddress(4, "127.0.0.1", 1), MemberAddress(REPLICA, *joining.address))
            ),
            0,
        )
    assert joining.known == {4: PeerAddress("127.0.0.1", 1)}
    wait_until_received(network, moved, REPLICA, joining)
    assert joining.known == {4: moved.address}


def test_configured_addresses_override_all_others(network: PeerNetwork) -> None:
    """As a proxy between two nodes."""
    other = network.come(1)
    own, proxy = free_port(), PeerAddress("127.0.0.1", free_port())
    first = network.come(0, peers=f"0@127.0.0.1:{own},1@{proxy}", peer_listen=f"127.0.0.1:{own}")
    other.directory.add_reported(PeerDirectoryUpdate((MemberAddress(0, *first.address),)), 0)
    wait_until_received(network, other, 0, first)
    assert first.known == {1: proxy}


def test_has_news_stays_set_until_it_is_reset(network: PeerNetwork) -> None:
    one, other = network.come(1), network.come(5, REPLICA, join="127.0.0.1:1")
    assert one.directory.has_news
    one.directory.has_news = False
    other.directory.add_reported(PeerDirectoryUpdate((MemberAddress(1, *one.address),)), 0)
    wait_until_received(network, other, 1, one)
    assert one.directory.has_news
    assert [header.member for header in one.directory.headers] == [1, REPLICA]


def test_an_expired_member_is_disconnected(network: PeerNetwork) -> None:
    one, other = network.come(1), network.come(5, REPLICA, join="127.0.0.1:1")
    other.directory.add_reported(PeerDirectoryUpdate((MemberAddress(1, *one.address),)), 0)
    wait_until_received(network, other, 1, one)
    sockets = len(one.watched)
    one.directory.expire({}, EXPIRY_MS - 1)
    one.directory.expire({5}, EXPIRY_MS)
    assert REPLICA in one.known
    one.directory.expire({}, EXPIRY_MS)
    assert one.known == {}
    assert len(one.watched) == sockets - 2


def test_a_single_node_has_no_bus() -> None:
    config = msgspec.structs.replace(load(environment={}), node_id=3)
    alone = PeerDirectory(config, 3, refuses=lambda _header: None, watch=lambda _s, _n: None)
    assert alone.bus is None
    alone.send(ALL_MEMBERS, HELLO)
    alone.send_directory(1)
    assert list(alone.headers) == []
