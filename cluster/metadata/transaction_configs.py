"""The keys of a broker's configuration that concern transactions: Kafka's (4.3), and those of the
watchdog, which are ours. What has to be the same for all is of scope CLUSTER."""

from typing import Final

from odradek.cluster.metadata.config_definitions import (
    ConfigScope,
    ConfigType,
    Importance,
    at_least,
    define,
)

TRANSACTION_CONFIGS: Final = (
    define(
        "transaction.max.timeout.ms",
        ConfigType.INT,
        900_000,
        "The longest transaction.timeout.ms that a producer may ask for.",
        enforced_by="odradek.coordinator.transaction.shard",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "transaction.partition.verification.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether the first batch that an older client writes to a partition in a transaction is let"
        " in only if the transaction's coordinator knows that the partition takes part.",
        enforced_by="odradek.node.router.handlers.produce",
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        ConfigType.INT,
        3_600_000,
        "How often transactional ids are looked through for those that nobody uses any more.",
        enforced_by="odradek.coordinator.transaction.shard",
        validator=at_least(1),
        importance=Importance.LOW,
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "transaction.state.log.min.isr",
        ConfigType.INT,
        2,
        "The min.insync.replicas that __transaction_state is created with.",
        enforced_by="odradek.node.router.shards.transaction_coordinator_type",
        validator=at_least(1),
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "transaction.state.log.num.partitions",
        ConfigType.INT,
        50,
        "How many partitions __transaction_state gets; it cannot be changed once the topic exists.",
        enforced_by="odradek.node.router.shards.transaction_coordinator_type",
        validator=at_least(1),
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "transaction.state.log.replication.factor",
        ConfigType.SHORT,
        3,
        "How many replicas __transaction_state gets, if there are that many brokers.",
        enforced_by="odradek.node.router.shards.transaction_coordinator_type",
        validator=at_least(1),
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "transaction.state.log.segment.bytes",
        ConfigType.INT,
        16_777_216,
        "The segment.bytes that __transaction_state is created with; see"
        " offsets.topic.segment.bytes.",
        enforced_by="odradek.node.router.shards.transaction_coordinator_type",
        validator=at_least(1 << 20),
        scope=ConfigScope.READ_ONLY,
    ),
    define(
        "transaction.watchdog.abort.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether the broker aborts transactions that hang in partitions it leads: such as are open"
        " there, silent for longer than transaction.max.timeout.ms and"
        " transaction.watchdog.margin.ms together, and unknown to all coordinators. Otherwise they"
        " are only logged and counted.",
        enforced_by="odradek.node.router.transactions.watchdog",
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "transaction.watchdog.interval.ms",
        ConfigType.INT,
        60_000,
        "How often to look for transactions that hang; it takes two looks to be sure of one.",
        enforced_by="odradek.node.router.transactions.watchdog",
        validator=at_least(100),
        importance=Importance.LOW,
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "transaction.watchdog.margin.ms",
        ConfigType.INT,
        300_000,
        "How much longer than transaction.max.timeout.ms a transaction must be silent to hang.",
        enforced_by="odradek.node.router.transactions.watchdog",
        validator=at_least(0),
        importance=Importance.LOW,
        scope=ConfigScope.CLUSTER,
    ),
    define(
        "transactional.id.expiration.ms",
        ConfigType.INT,
        604_800_000,
        "After how long without a transaction a transactional id is forgotten.",
        enforced_by="odradek.coordinator.transaction.shard",
        validator=at_least(1),
        scope=ConfigScope.CLUSTER,
    ),
)
