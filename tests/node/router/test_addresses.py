"""Which address a client is told for a broker."""

from dataclasses import dataclass

import msgspec

from odradek.cluster.metadata.image import (
    NO_LEADER,
    BrokerImage,
    BrokerListener,
    MetadataImage,
    PartitionImage,
)
from odradek.node.router.addresses import address_of, endpoints_of, leader_for_clients
from odradek.protocol.messages.current_leader import NodeEndpoint


@dataclass
class Caller:
    listener_name: str = "EXTERNAL"
    local_host: str = "reached"
    local_port: int = 7


def broker(*listeners: BrokerListener, broker_id: int = 1) -> BrokerImage:
    return BrokerImage(broker_id, 1, listeners=listeners)


def test_the_advertised_address_of_the_clients_own_listener_is_told() -> None:
    both = broker(BrokerListener("INTERNAL", "in", 1), BrokerListener("EXTERNAL", "out", 2))
    assert address_of(both, Caller(), 1) == ("out", 2)
    assert address_of(both, Caller("INTERNAL"), 9) == ("in", 1)


def test_a_leader_that_was_just_lost_sight_of_is_none_to_clients() -> None:
    partition = PartitionImage((1, 2), (1, 2), 1)
    assert leader_for_clients(partition, frozenset()) == 1
    assert leader_for_clients(partition, frozenset({2})) == 1
    assert leader_for_clients(partition, frozenset({1})) == NO_LEADER


def test_what_advertises_nothing_is_where_the_client_reached_it() -> None:
    for silent in (BrokerListener("EXTERNAL", "", 0), BrokerListener("EXTERNAL", "host", 0)):
        assert address_of(broker(silent), Caller(), 1) == ("reached", 7)
    assert address_of(broker(), Caller(), 1) == ("reached", 7)


def test_nothing_is_told_of_another_broker_without_an_address() -> None:
    assert address_of(broker(BrokerListener("EXTERNAL", "", 0)), Caller(), 9) is None
    assert address_of(broker(BrokerListener("INTERNAL", "in", 1)), Caller(), 9) is None


def test_brokers_are_named_with_an_address_or_not_at_all() -> None:
    public = (BrokerListener("EXTERNAL", "out", 2),)
    brokers = {
        1: BrokerImage(1, 10, listeners=public, rack="r"),
        2: BrokerImage(2, 11, listeners=(BrokerListener("INTERNAL", "in", 1),)),
        3: BrokerImage(3, 12, listeners=public, is_fenced=True),
        9: BrokerImage(9, 13),
    }
    image = msgspec.structs.replace(MetadataImage.empty(), brokers=brokers)
    assert endpoints_of({9, 3, 2, 1, -1, 77}, image, Caller(), 9) == [
        NodeEndpoint(node_id=1, host="out", port=2, rack="r"),
        NodeEndpoint(node_id=9, host="reached", port=7, rack=None),
    ]
