"""The loggers of a node and their levels, which can be changed while it runs (KIP-412).

The loggers are those of our modules that log, the folders that they are in, and `root`. A change is
lost when the node stops, as in Kafka; `log.level` is the level of `root` that stays. A logger
without a level of its own has that of the logger whose name is the longest prefix of its name.
Every process of a node has the same levels: the supervisor keeps them in the node's configuration
and brings that to the others (configuration_rollout.py).
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.protocol.errors import ApiError, ErrorCode

ROOT_LOGGER: Final = "root"
LEVELS: Final[Mapping[str, int]] = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}
"""Kafka's names of levels. Nothing of ours logs below DEBUG."""
_KAFKA_NAMES: Final[Mapping[str, str]] = {"WARNING": "WARN", "CRITICAL": "FATAL"}

_MODULES: Final = (
    "asyncio",
    "odradek.node.bus.peers",
    "odradek.node.child",
    "odradek.node.config_watch",
    "odradek.node.configuration_updates",
    "odradek.node.controller.active_controller",
    "odradek.node.controller.broker_lifecycle",
    "odradek.node.controller.clean_shutdown",
    "odradek.node.controller.metadata_log_writer",
    "odradek.node.controller.metadata_publisher",
    "odradek.node.controller.node_readiness",
    "odradek.node.controller.peer_dispatch",
    "odradek.node.controller.process",
    "odradek.node.controller.process_liveness",
    "odradek.node.controller.quorum_leadership",
    "odradek.node.controller.raft_driver",
    "odradek.node.cpu_affinity",
    "odradek.node.listener_security",
    "odradek.node.metrics.registry",
    "odradek.node.override_updates",
    "odradek.node.process_replacement",
    "odradek.node.router.archive_groups",
    "odradek.node.router.audit_log",
    "odradek.node.router.change_log",
    "odradek.node.router.client_listeners",
    "odradek.node.router.connection_handover",
    "odradek.node.router.connection_limits",
    "odradek.node.router.dispatch",
    "odradek.node.router.graceful_stop",
    "odradek.node.router.group_lag_metrics",
    "odradek.node.router.handlers.quotas",
    "odradek.node.router.handlers.tokens",
    "odradek.node.router.inter_broker_client",
    "odradek.node.router.listener_health",
    "odradek.node.router.logs",
    "odradek.node.router.repeated_requests",
    "odradek.node.router.sasl_authentication",
    "odradek.node.router.shards.coordinator_service",
    "odradek.node.router.shards.coordinator_type",
    "odradek.node.router.shards.group_coordinator_type",
    "odradek.node.router.shards.shard_host",
    "odradek.node.router.shards.share_coordinator_type",
    "odradek.node.router.share.dead_letter_queue",
    "odradek.node.router.share.partitions",
    "odradek.node.router.share.persister",
    "odradek.node.router.share.state_effects",
    "odradek.node.router.telemetry.subscriptions",
    "odradek.node.router.token_verification",
    "odradek.node.router.topic_log",
    "odradek.node.router.tracing.tracer",
    "odradek.node.router.transactions.markers",
    "odradek.node.router.transactions.watchdog",
    "odradek.node.router.worker_client",
    "odradek.node.storage_health",
    "odradek.node.structured_log",
    "odradek.node.supervisor",
    "odradek.node.wire.acceptor",
    "odradek.node.wire.connection",
    "odradek.node.wire.flush_queue",
    "odradek.node.wire.tls_context",
    "odradek.node.worker.hosted_partitions",
    "odradek.node.worker.interpreter_settings",
    "odradek.node.worker.process",
    "odradek.node.worker.processor_settings",
    "odradek.node.worker.replica_fetch_server",
    "odradek.node.worker.replica_fetchers",
    "odradek.node.worker.replica_moves",
    "odradek.node.worker.replication",
    "odradek.node.worker.router_links",
    "odradek.storage.maintenance",
)


def _ancestors(name: str) -> Iterator[str]:
    """The name itself and its prefixes, the longest first; `root` at the end."""
    while name and name != ROOT_LOGGER:
        yield name
        name = name.rpartition(".")[0]
    yield ROOT_LOGGER


LOGGERS: Final = tuple(sorted({each for name in _MODULES for each in _ancestors(name)}))
"""All loggers whose level can be changed."""


def level_chain(
    name: str, root_level: str, levels: Mapping[str, str]
) -> list[tuple[str, str, ConfigSource]]:
    """What gives a logger its level, the strongest first: (logger, level, source).

    `levels` are the levels that were set while the node runs, and `root_level` is the configured
    one, which is the last.
    """
    chain = [
        (each, levels[each], ConfigSource.DYNAMIC_BROKER_LOGGER)
        for each in _ancestors(name)
        if each in levels
    ]
    configured = _KAFKA_NAMES.get(root_level, root_level)
    return [*chain, ("log.level", configured, ConfigSource.STATIC_BROKER)]


def check_level(name: str, level: str | None) -> None:
    """ApiError, with Kafka's text, unless the logger exists and can have the level; None takes the
    logger's own level away."""
    if name not in LOGGERS:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if level is None and name == ROOT_LOGGER:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed"
        )
    if level is not None and level not in LEVELS:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {level} as it is not a supported log level."
            f" Valid log levels are {', '.join(sorted(LEVELS))}",
        )


def merged_levels(levels: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The levels after changes; a change to None removes the logger's own level."""
    after = {**levels, **changes}
    return {name: level for name, level in sorted(after.items()) if level is not None}


def set_log_levels(root_level: str, levels: Mapping[str, str]) -> None:
    """Give the loggers of this process their levels."""
    for name in LOGGERS:
        if name != ROOT_LOGGER:
            level = levels.get(name)
            logging.getLogger(name).setLevel(logging.NOTSET if level is None else LEVELS[level])
    of_root = levels.get(ROOT_LOGGER)
    logging.getLogger().setLevel(root_level if of_root is None else LEVELS[of_root])
