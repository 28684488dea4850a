"""The keys of the share coordinator (KIP-932), with Kafka's names, defaults and limits (4.3): its
topic, and how it writes to it."""

from typing import Final

from odradek.cluster.metadata.config_definitions import (
    ConfigScope,
    ConfigType,
    at_least,
    between,
    define,
)

_KIND: Final = "odradek.node.router.shards.share_coordinator_type"

SHARE_COORDINATOR_CONFIGS: Final = (
    define(
        "share.coordinator.snapshot.update.records.per.snapshot",
        ConfigType.INT,
        500,
        "After how many changes of what a share group knows of a partition the whole is written"
        " again.",
        enforced_by="odradek.coordinator.share.shard",
        validator=between(0, 500),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "share.coordinator.state.topic.min.isr",
        ConfigType.SHORT,
        2,
        "The min.insync.replicas that __share_group_state is created with.",
        enforced_by=_KIND,
        validator=at_least(1),
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "share.coordinator.state.topic.num.partitions",
        ConfigType.INT,
        50,
        "How many partitions __share_group_state gets; it cannot be changed once the topic exists.",
        enforced_by=_KIND,
        validator=at_least(1),
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "share.coordinator.state.topic.replication.factor",
        ConfigType.SHORT,
        3,
        "How many replicas __share_group_state gets, if there are that many brokers.",
        enforced_by=_KIND,
        validator=at_least(1),
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "share.coordinator.state.topic.segment.bytes",
        ConfigType.INT,
        104_857_600,
        "The segment.bytes that __share_group_state is created with.",
        enforced_by=_KIND,
        validator=at_least(1 << 20),
        scope=ConfigScope.READ_ONLY,
    ),
)
