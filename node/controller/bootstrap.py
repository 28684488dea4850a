"""The first words of a cluster's metadata, and of a node's start.

A new cluster's log begins with its id and the levels of features that a new cluster has; one that
was made before there were levels goes on without. Every start of the node registers it anew, so
that the broker epoch rises and the address that clients are told follows the configuration.
"""

import uuid

from odradek.cluster.controller.commands import RegisterBroker
from odradek.cluster.controller.features import min_insync_replicas_records
from odradek.cluster.metadata.config_layers import CLUSTER_DEFAULT_BROKER
from odradek.cluster.metadata.features import INITIAL_LEVELS, SUPPORTED_FEATURES
from odradek.cluster.metadata.image import BrokerListener, ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ClusterCreated, FeatureLevelChanged, Record
from odradek.node.config import WORKER_LISTENER_PREFIX, ListenerConfig, NodeConfig
from odradek.node.peer_config import is_wildcard_address
from odradek.protocol.types import Uuid


def bootstrap_records(config: NodeConfig) -> tuple[Record, ...]:
    """What the log of a new cluster begins with."""
    return (
        ClusterCreated(config.cluster_id),
        *(FeatureLevelChanged(name, level) for name, level in INITIAL_LEVELS.items()),
        *min_insync_replicas_records(MetadataImage.empty(), config.node_id, config.broker_configs),
    )


def min_insync_warning(config: NodeConfig, image: MetadataImage) -> str | None:
    """What to tell about a min.insync.replicas in the node's own configuration that the cluster's
    overrules: one with eligible leader replicas keeps the one it began with (KIP-966)."""
    key = "min.insync.replicas"
    own = config.static_configs.get(key)
    clusters = image.configs.of(ConfigResourceType.BROKER, CLUSTER_DEFAULT_BROKER).get(key)
    if own is None or clusters in (None, own):
        return None
    return (
        f"{key}={own} of this node's configuration is without effect: the cluster's is {clusters};"
        " change it for all brokers at once, for example with kafka-configs.sh --entity-type"
        " brokers --entity-default"
    )


def registration(
    config: NodeConfig, incarnation_id: Uuid, previous_broker_epoch: int | None = None
) -> RegisterBroker:
    """This node's registration. `previous_broker_epoch` is what `last_run` says; it matters to
    others only.

    On its own, a listener without an advertised address has an empty host there, and clients are
    told the address at which they reached us. One of several must be found by those who reached
    another: then it is the listener's own host, or, where that is every address of the machine, the
    host at which the other nodes find this one.
    """
    return RegisterBroker(
        broker_id=config.node_id,
        incarnation_id=incarnation_id,
        cluster_id=config.cluster_id,
        listeners=(
            *(
                BrokerListener(
                    name=listener.name,
                    host=listener.advertised_host or _host_for_others(config, listener),
                    port=listener.advertised_port or listener.port,
                    security_protocol=listener.security_protocol,
                )
                for listener in config.listeners
            ),
            *_workers(config),
        ),
        rack=config.broker_configs.get("broker.rack"),
        features=SUPPORTED_FEATURES,
        log_dirs=(uuid.UUID(config.directory_id).bytes,) if config.directory_id else (),
        starts_fenced=config.is_clustered,
        previous_broker_epoch=previous_broker_epoch if config.is_clustered else None,
    )


def _workers(config: NodeConfig) -> tuple[BrokerListener, ...]:
    """Found behind the port at which the others find this node, as they listen behind its own: a
    range of ports that is mapped to another is mapped as a whole."""
    own = config.own_peer
    if own is None or not config.is_clustered:
        return ()
    return tuple(
        BrokerListener(
            name=f"{WORKER_LISTENER_PREFIX}{index}", host=own.host, port=own.port + 1 + index
        )
        for index in range(config.worker_count)
    )


def _host_for_others(config: NodeConfig, listener: ListenerConfig) -> str:
    if not config.is_clustered:
        return ""
    if not is_wildcard_address(listener.host):
        return listener.host
    own = config.own_peer
    assert own is not None, "one of several listens for the others"
    return own.host
