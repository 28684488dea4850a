"""Advertised addresses: where one client reaches one broker.

A client gets the address of the listener that it is connected to. If this node's listener
advertises none, the client gets the address that it used itself, which is right behind port
mappings and on hosts with several names. A broker without an address for the client is left out:
clients take an empty host for an address and do not retry.
"""

from collections.abc import Container, Iterable
from typing import Protocol

from odradek.cluster.metadata.image import NO_LEADER, BrokerImage, MetadataImage, PartitionImage
from odradek.protocol.messages.responses import NodeEndpoint


class ConnectedListener(Protocol):
    """The listener and local address of a client's connection. RequestContext has them."""

    listener_name: str
    local_host: str
    local_port: int


def address_of(
    broker: BrokerImage, caller: ConnectedListener, node_id: int
) -> tuple[str, int] | None:
    """Host and port of `broker` for this client, None without one."""
    listener = broker.listener(caller.listener_name)
    if listener is not None and listener.host and listener.port:
        return listener.host, listener.port
    if broker.broker_id == node_id:
        return caller.local_host, caller.local_port
    return None


def leader_for_clients(partition: PartitionImage, unreachable: Container[int]) -> int:
    """The leader to name; NO_LEADER if there is none, or the connection to it has just broken.

    A client that gets a dead leader refreshes its metadata after a second at best. Without a
    leader it refreshes at once, until there is a new one.
    """
    return NO_LEADER if partition.leader in unreachable else partition.leader


def endpoints_of(
    brokers: Iterable[int], image: MetadataImage, caller: ConnectedListener, node_id: int
) -> list[NodeEndpoint]:
    """The unfenced ones of these brokers that have an address for this client, by id."""
    endpoints = []
    for broker_id in sorted(brokers):
        broker = image.brokers.get(broker_id)
        if broker is None or broker.is_fenced:
            continue
        address = address_of(broker, caller, node_id)
        if address is not None:
            host, port = address
            endpoints.append(
                NodeEndpoint(node_id=broker_id, host=host, port=port, rack=broker.rack)
            )
    return endpoints
