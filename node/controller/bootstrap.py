"""The first records of a new cluster, and this broker's registration.

A new cluster's log begins with its id, the initial feature levels and the users of `odradek
format`. Every start registers the broker again: its epoch rises, and its listeners are those of the
configuration.
"""

from odradek.cluster.controller.commands import RegisterBroker
from odradek.cluster.controller.features import min_insync_replicas_records
from odradek.cluster.metadata.config_layers import CLUSTER_DEFAULT_BROKER
from odradek.cluster.metadata.features import INITIAL_LEVELS, REGISTERED_FEATURES
from odradek.cluster.metadata.image import BrokerListener, ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ClusterCreated, FeatureLevelChanged, Record
from odradek.node.bootstrap_credentials import read_bootstrap_credentials
from odradek.node.config import WORKER_LISTENER_PREFIX, ListenerConfig, NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.listener_configs import effective_config
from odradek.node.peer_config import is_wildcard_address
from odradek.protocol.types import Uuid


def bootstrap_records(config: NodeConfig) -> tuple[Record, ...]:
    """The records of the first entry of a new cluster's log."""
    return (
        ClusterCreated(config.cluster_id),
        *(FeatureLevelChanged(name, level) for name, level in INITIAL_LEVELS.items()),
        *min_insync_replicas_records(MetadataImage.empty(), config.node_id, config.broker_configs),
        *read_bootstrap_credentials(config.data_folder),
    )


def min_insync_warning(config: NodeConfig, image: MetadataImage) -> str | None:
    """A warning if the cluster's min.insync.replicas overrides this node's: a cluster with eligible
    leader replicas keeps the value that it was bootstrapped with (KIP-966)."""
    key = "min.insync.replicas"
    own = config.static_configs.get(key)
    clusters = image.configs.of(ConfigResourceType.BROKER, CLUSTER_DEFAULT_BROKER).get(key)
    if own is None or clusters in (None, own):
        return None
    return (
        f"{key}={own} in this node's configuration has no effect: the cluster has {clusters}."
        " Change it for all brokers, for example with kafka-configs.sh --entity-type brokers"
        " --entity-default."
    )


def registered_config(config: NodeConfig, image: MetadataImage) -> NodeConfig:
    """The configuration whose listeners are registered: with what was changed while nodes run. If
    that contradicts the node's own configuration, which the router reports, without it."""
    try:
        return effective_config(config, image)
    except ConfigurationError:
        return config


def registration(
    config: NodeConfig, incarnation_id: Uuid, previous_broker_epoch: int | None = None
) -> RegisterBroker:
    """This broker's registration. `previous_broker_epoch` is that of `clean_shutdown`; only a
    cluster needs it.

    A listener without an advertised address gets, on a single node, an empty host: clients get the
    address to which they connected. In a cluster clients come from other brokers: then it is
    the listener's own host or, for a wildcard address, the host of peer.listen.
    """
    log_dirs = [each for each in config.log_dirs if each.directory_id]
    if config.further_log_dirs and not config.directory_id:
        # An older release formatted the data folder. It is the first directory all the same.
        log_dirs.insert(0, config.log_dirs[0])
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
        features=REGISTERED_FEATURES,
        log_dirs=tuple(each.uuid for each in log_dirs),
        log_dir_paths=tuple(each.path for each in log_dirs),
        offline_log_dirs=tuple(each.uuid for each in log_dirs if each.problem),
        starts_fenced=config.is_clustered,
        previous_broker_epoch=previous_broker_epoch if config.is_clustered else None,
    )


def _workers(config: NodeConfig) -> tuple[BrokerListener, ...]:
    """One listener for each worker, at the ports after the advertised peer port. Workers bind the
    ports after that of peer.listen: a mapped range of ports is mapped as a whole."""
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
    assert own is not None, "a node of a cluster has peer.listen"
    return own.host
