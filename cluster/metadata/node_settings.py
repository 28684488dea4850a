"""The keys of a node that Kafka does not have: its processes, its peers, its log and its probes.

They are read by `node/config.py`, which checks them; here is what DescribeConfigs says of them.
Some can be set through the cluster (node/node_overrides.py). The others are what a node needs to
find the cluster, or addresses and files of its machine: what a running node follows in its
configuration file is said with each, of the others why a change takes a restart. Those that a
process reads at its start replace it (docs/adr/0018-replacing-processes.md).
"""

from typing import Final

from odradek.cluster.metadata.config_definitions import ConfigScope, at_least, between, one_of
from odradek.cluster.metadata.config_schema import integer, long, password, settings, string
from odradek.cluster.metadata.image import ConfigResourceType

_READ: Final = "odradek.node.config"
_FOLLOWED: Final = " A running node follows its configuration file in this."


def _replacing(processes: str) -> str:
    return (
        " A running node follows its configuration file in this: it replaces its"
        f" {processes}, one after the other."
    )


@settings(ConfigResourceType.BROKER)
class StartupSettings:
    """What a node is started with."""

    profile: str = string(
        "standard",
        "dev: little memory, and no waiting for members of groups. standard: as in production. It"
        f" gives arena.bytes, workers and delays of groups their defaults.{_FOLLOWED}",
        enforced_by=_READ,
        scope=ConfigScope.READ_ONLY,
    )
    run: str | None = string(
        None,
        "The folder of the node's sockets. It has nothing that outlives the node. A change takes a"
        " restart, because all processes of the node have it open.",
        enforced_by=_READ,
        scope=ConfigScope.READ_ONLY,
    )
    stores: int | None = integer(
        None,
        "How many stores the data folder has. It is fixed when the folder is formatted.",
        enforced_by=_READ,
        validator=between(0, 256),
        scope=ConfigScope.READ_ONLY,
    )
    routers: int = integer(
        1,
        "How many processes serve clients: one in this release, so there is nothing to change.",
        enforced_by=_READ,
        validator=between(1, 1),
        scope=ConfigScope.READ_ONLY,
    )
    arena_bytes: int = long(
        1 << 30,
        f"The shared memory for the bytes of requests.{_replacing('router')}",
        enforced_by=_READ,
        validator=at_least(16 << 20),
        scope=ConfigScope.BROKER,
    )
    processor_placement: str = string(
        "split",
        "split: router and workers use different processors. shared: each may use any."
        f"{_replacing('workers and router')}",
        enforced_by=_READ,
        validator=one_of("split", "shared"),
        scope=ConfigScope.BROKER,
    )
    log_level: str = string(
        "INFO",
        "The least level of the lines that the node logs, unless a logger has its own: those are"
        f" configs of the type BROKER_LOGGER.{_FOLLOWED}",
        enforced_by=_READ,
        validator=one_of("DEBUG", "INFO", "WARNING", "ERROR"),
        scope=ConfigScope.BROKER,
    )
    log_format: str = string(
        "auto",
        f"text, json, or auto: text on a terminal and JSON elsewhere.{_FOLLOWED}",
        enforced_by=_READ,
        validator=one_of("auto", "text", "json"),
        scope=ConfigScope.BROKER,
    )
    http_listen: str | None = string(
        None,
        f"Where /livez, /readyz and /metrics are served; empty: nowhere.{_FOLLOWED}",
        enforced_by=_READ,
        scope=ConfigScope.READ_ONLY,
    )
    controlled_shutdown_timeout_ms: int = integer(
        10_000,
        "The longest time that a stopping node waits until other nodes lead its partitions; 0: it"
        f" does not wait.{_FOLLOWED}",
        enforced_by=_READ,
        validator=between(0, 3_600_000),
        scope=ConfigScope.BROKER,
    )
    cluster_id: str | None = string(
        None,
        "The id of the cluster. A single node makes one when it is formatted; it never changes.",
        enforced_by=_READ,
        scope=ConfigScope.READ_ONLY,
    )
    cluster_secret: str | None = password(
        None,
        "The secret that all nodes of the cluster share, and from which they know each other; two,"
        " in a line each, while it is replaced. Not accepted on the command line. A running node"
        " follows its configuration file in this, but for having none: nodes that encrypt and nodes"
        " that do not cannot talk to each other, so all of them have to be stopped for that.",
        enforced_by=_READ,
        scope=ConfigScope.READ_ONLY,
    )
    peers: str | None = string(
        None,
        "The nodes with which the cluster begins, as in 0@host:port,1@host:port. Later it has no"
        " effect but for addresses: the members of the quorum are in the metadata log, and change"
        f" with `odradek quorum`.{_replacing('controller process')}",
        enforced_by=_READ,
        scope=ConfigScope.READ_ONLY,
    )
    join: str | None = string(
        None,
        "Addresses of nodes of a running cluster that this node joins when it starts for the first"
        f" time.{_replacing('controller process')}",
        enforced_by=_READ,
        scope=ConfigScope.READ_ONLY,
    )
    peer_listen: str | None = string(
        None,
        "Where the node listens for other nodes. Its workers use the ports after this one."
        f"{_replacing('controller process and workers')} Nodes that have this one in `peers` need"
        " the new address there.",
        enforced_by=_READ,
        scope=ConfigScope.READ_ONLY,
    )
    peer_advertised: str | None = string(
        None,
        "The address that other nodes use, if it is another one than peer.listen."
        f"{_replacing('controller process')}",
        enforced_by=_READ,
        scope=ConfigScope.READ_ONLY,
    )


RESTART_REASONS: Final = {
    "cluster.secret": "nodes that encrypt their traffic and nodes that do not cannot talk to each"
    " other, so whether there is a secret at all takes a restart of all nodes together",
    "data": "it is what makes the node",
    "log.dirs": "stores of new directories are opened, and lost ones noticed, by a start",
    "node.id": "it is what makes the node",
    "run": "all processes of the node have it open, and find each other there",
}
"""Why a change of these keys in the file of a running node waits for a restart."""
