"""Where clients find a broker: the address to tell one client for one broker.

A client is told the address of the listener it came in by. A listener that advertises nothing is
reached at whatever address the client itself used, which is right behind port mappings and on
machines with several names; that can only be said of this node. A broker without an address for the
client is not shown to it at all: clients take an empty host for an address and never come back.
"""

from collections.abc import Container, Iterable
from typing import NamedTuple, Protocol

from odradek.cluster.metadata.image import NO_LEADER, BrokerImage, MetadataImage, PartitionImage
from odradek.node.config import WORKER_LISTENER_PREFIX


class ConnectedListener(Protocol):
    """How a client reached us: RequestContext has it."""

    listener_name: str
    local_host: str
    local_port: int


class BrokerEndpoint(NamedTuple):
    """Where one client reaches one broker."""

    node_id: int
    host: str
    port: int
    rack: str | None


def address_of(
    broker: BrokerImage, caller: ConnectedListener, node_id: int
) -> tuple[str, int] | None:
    """Host and port of `broker` for this client, or None if it has none there."""
    listener = broker.listener(caller.listener_name)
    if listener is not None and listener.host and listener.port:
        return listener.host, listener.port
    if broker.broker_id == node_id:
        return caller.local_host, caller.local_port
    return None


def leader_for_clients(partition: PartitionImage, unreachable: Container[int]) -> int:
    """The leader to tell, NO_LEADER if there is none or it has just been lost sight of.

    A client that is told of a dead leader takes it for known and asks again in a second at best;
    one that is told of none asks again at once, until there is a new one.
    """
    return NO_LEADER if partition.leader in unreachable else partition.leader


def endpoints_of(
    brokers: Iterable[int], image: MetadataImage, caller: ConnectedListener, node_id: int
) -> list[BrokerEndpoint]:
    """Those of the brokers that serve and have an address for this client, by rising id."""
    endpoints = []
    for broker_id in sorted(brokers):
        broker = image.brokers.get(broker_id)
        if broker is None or broker.is_fenced:
            continue
        address = address_of(broker, caller, node_id)
        if address is not None:
            endpoints.append(BrokerEndpoint(broker_id, *address, broker.rack))
    return endpoints


def inter_broker_address(image: MetadataImage, node_id: int) -> str | None:
    """Where the router of another node is reached: at its first worker, which passes on what is not
    for itself. None if that node serves no others."""
    broker = image.brokers.get(node_id)
    for listener in broker.listeners if broker is not None else ():
        if listener.name.startswith(WORKER_LISTENER_PREFIX):
            host = f"[{listener.host}]" if ":" in listener.host else listener.host
            return f"tcp://{host}:{listener.port}"
    return None
