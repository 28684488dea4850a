"""The address of a broker that a client gets."""

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
from odradek.protocol.messages.responses import NodeEndpoint


@dataclass
class Caller:
    listener_name: str = "EXTERNAL"
    local_host: str = "reached"
    local_port: int = 7


def broker(*listeners: BrokerListener, broker_id: int = 1) -> BrokerImage:
    return BrokerImage(broker_id, 1, listeners=listeners)


def test_a_client_gets_the_advertised_address_of_its_own_listener() -> None:
    both = broker(BrokerListener("INTERNAL", "in", 1), BrokerListener("EXTERNAL", "out", 2))
    assert address_of(both, Caller(), 1) == ("out", 2)
    assert address_of(both, Caller("INTERNAL"), 9) == ("in", 1)


def test_an_unreachable_leader_is_no_leader_for_clients() -> None:
    partition = PartitionImage((1, 2), (1, 2), 1)
    assert leader_for_clients(partition, frozenset()) == 1
    assert leader_for_clients(partition, frozenset({2})) == 1
    assert leader_for_clients(partition, frozenset({1})) == NO_LEADER


def test_without_an_advertised_address_a_client_gets_the_address_that_it_used() -> None:
    for silent in (BrokerListener("EXTERNAL", "", 0), BrokerListener("EXTERNAL", "host", 0)):
        assert address_of(broker(silent), Caller(), 1) == ("reached", 7)
    assert address_of(broker(), Caller(), 1) == ("reached", 7)


def test_another_broker_without_an_address_has_none() -> None:
    assert address_of(broker(BrokerListener("EXTERNAL", "", 0)), Caller(), 9) is None
    assert address_of(broker(BrokerListener("INTERNAL", "in", 1)), Caller(), 9) is None


def test_brokers_without_an_address_are_left_out() -> None:
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
