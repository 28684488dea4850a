"""The first words of a cluster's metadata, and of a node's start.

A new cluster's log begins with its id. Every start of the node registers it anew, so that the
broker epoch rises and the address that clients are told follows the configuration.
"""

from cluster.controller.commands import RegisterBroker
from cluster.metadata.image import Listener
from cluster.metadata.records import ClusterCreated, Record
from node.config import NodeConfig
from protocol.types import Uuid


def bootstrap_records(config: NodeConfig) -> tuple[Record, ...]:
    """What the log of a new cluster begins with."""
    return (ClusterCreated(config.cluster_id),)


def registration(config: NodeConfig, incarnation_id: Uuid) -> RegisterBroker:
    """This node's registration; a listener without an advertised address has an empty host there,
    and clients are told the address at which they reached us."""
    return RegisterBroker(
        broker_id=config.node_id,
        incarnation_id=incarnation_id,
        cluster_id=config.cluster_id,
        listeners=tuple(
            Listener(
                name=listener.name,
                host=listener.advertised_host or "",
                port=listener.advertised_port or listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in config.listeners
        ),
        rack=config.broker_configs.get("broker.rack"),
    )
