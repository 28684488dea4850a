"""The configs as the code uses them: typed, all layers applied, one attribute per key.

Settings are read from the image when they are needed, never captured at start, so that a change
takes effect with the image that brings it. They are computed once per `ConfigsImage` and kept
there: a lookup costs a dictionary access as long as no config changes. A topic that has no
configs of its own shares one object with all others of that kind; that and a broker's settings
outlive changes of other topics' configs.

`static` is the broker's own configuration. It must have passed `static_config_errors`, and one
process passes the same mapping each time.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from odradek.cluster.metadata.broker_configs import BROKER_CONFIGS
from odradek.cluster.metadata.config_definitions import (
    ConfigError,
    ConfigScope,
    ConfigSource,
    ConfigValue,
)
from odradek.cluster.metadata.config_layers import (
    ConfigLayer,
    broker_candidates,
    broker_layers,
    effective_value,
    resource_candidates,
)
from odradek.cluster.metadata.image import ConfigResourceType, ConfigsImage, MetadataImage
from odradek.cluster.metadata.topic_configs import TOPIC_CONFIGS


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Every key of a topic. Durations in ms; -1 stands for "no limit" where a key allows it."""

    cleanup_policy: tuple[str, ...]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    errors_deadletterqueue_group_enable: bool
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: tuple[str, ...]
    index_interval_bytes: int
    leader_replication_throttled_replicas: tuple[str, ...]
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Every key of a broker that is more than a topic's default; see `TopicSettings` for those."""

    advertised_listeners: tuple[str, ...] | None
    auto_create_topics_enable: bool
    auto_leader_rebalance_enable: bool
    broker_heartbeat_interval_ms: int
    broker_rack: str | None
    broker_session_timeout_ms: int
    connections_max_idle_ms: int
    cordoned_log_dirs: tuple[str, ...]
    default_replication_factor: int
    delete_topic_enable: bool
    durability: str
    errors_deadletterqueue_auto_create_topics_enable: bool
    errors_deadletterqueue_topic_name_prefix: str
    fetch_max_bytes: int
    follower_replication_throttled_rate: int
    group_consumer_assignment_interval_ms: int
    group_consumer_max_assignment_interval_ms: int
    group_consumer_min_assignment_interval_ms: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_heartbeat_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_session_timeout_ms: int
    group_ephemeral_patterns: tuple[str, ...]
    group_ephemeral_ttl_ms: int
    group_initial_rebalance_delay_ms: int
    group_lag_metrics: str
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    group_share_delivery_count_limit: int
    group_share_max_delivery_count_limit: int
    group_share_max_partition_max_record_locks: int
    group_share_max_record_lock_duration_ms: int
    group_share_max_share_sessions: int
    group_share_min_delivery_count_limit: int
    group_share_min_partition_max_record_locks: int
    group_share_min_record_lock_duration_ms: int
    group_share_partition_max_record_locks: int
    group_share_record_lock_duration_ms: int
    group_share_assignment_interval_ms: int
    group_share_max_assignment_interval_ms: int
    group_share_min_assignment_interval_ms: int
    group_share_heartbeat_interval_ms: int
    group_share_max_heartbeat_interval_ms: int
    group_share_max_session_timeout_ms: int
    group_share_max_size: int
    group_share_min_heartbeat_interval_ms: int
    group_share_min_session_timeout_ms: int
    group_share_session_timeout_ms: int
    group_streams_assignment_interval_ms: int
    group_streams_max_assignment_interval_ms: int
    group_streams_min_assignment_interval_ms: int
    group_streams_heartbeat_interval_ms: int
    group_streams_initial_rebalance_delay_ms: int
    group_streams_max_heartbeat_interval_ms: int
    group_streams_max_session_timeout_ms: int
    group_streams_max_size: int
    group_streams_max_standby_replicas: int
    group_streams_min_heartbeat_interval_ms: int
    group_streams_min_session_timeout_ms: int
    group_streams_num_standby_replicas: int
    group_streams_session_timeout_ms: int
    leader_imbalance_check_interval_seconds: int
    leader_replication_throttled_rate: int
    listeners: tuple[str, ...] | None
    log_dirs: tuple[str, ...] | None
    log_retention_check_interval_ms: int
    max_connections: int
    max_connections_per_ip: int
    max_incremental_fetch_session_cache_slots: int
    node_id: int
    num_partitions: int
    offset_metadata_max_bytes: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    producer_id_expiration_ms: int
    replica_lag_time_max_ms: int
    replica_selector_class: str | None
    share_coordinator_snapshot_update_records_per_snapshot: int
    share_coordinator_state_topic_min_isr: int
    share_coordinator_state_topic_num_partitions: int
    share_coordinator_state_topic_replication_factor: int
    share_coordinator_state_topic_segment_bytes: int
    socket_request_max_bytes: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transaction_watchdog_abort_enable: bool
    transaction_watchdog_interval_ms: int
    transaction_watchdog_margin_ms: int
    transactional_id_expiration_ms: int
    workers: int | None


Settings = TypeVar("Settings", TopicSettings, BrokerSettings)


def topic_settings(
    image: MetadataImage, node_id: int, static: Mapping[str, str], name: str
) -> TopicSettings:
    """What holds for the topic `name` on the broker `node_id`, whether the topic exists or not."""
    configs = image.configs
    own = configs.of(ConfigResourceType.TOPIC, name)
    if not own:
        return _topic_defaults(configs, node_id, static)
    key = (TopicSettings, node_id, name)
    settings = _cached(configs.cache, key, TopicSettings, static)
    if settings is None:
        overrides = {
            definition.field_name: value
            for definition in (TOPIC_CONFIGS[name] for name in own if name in TOPIC_CONFIGS)
            if (value := _parsed_or_none(definition.name, own[definition.name])) is not None
        }
        settings = msgspec.structs.replace(_topic_defaults(configs, node_id, static), **overrides)
        configs.cache[key] = (static, settings)
    return settings


def broker_settings(
    image: MetadataImage, node_id: int, static: Mapping[str, str]
) -> BrokerSettings:
    """What holds for the broker `node_id`."""
    configs = image.configs
    key = (BrokerSettings, node_id)
    remembered = configs.broker_cache
    settings = _cached(remembered, key, BrokerSettings, static)
    if settings is None:
        layers = broker_layers(configs, node_id, static)
        settings = _convert(
            BrokerSettings,
            {
                definition.field_name: effective_value(
                    definition, broker_candidates(definition, layers)
                )[0]
                for definition in BROKER_CONFIGS.values()
                if definition.field_name in BrokerSettings.__struct_fields__
            },
        )
        remembered[key] = (static, settings)
    return settings


def static_config_errors(static: Mapping[str, str]) -> list[str]:
    """What is wrong with a broker's own configuration, one sentence per fault; empty if nothing is.

    Every sentence names the key, its value and what would be right. Keys that are no broker's
    keys are faults as well: a misspelled key must not be ignored in silence.
    """
    faults = []
    for name, text in static.items():
        definition = BROKER_CONFIGS.get(name)
        if definition is None:
            faults.append(f"{name}={text!r} is not a key of this broker's configuration")
            continue
        if definition.scope is ConfigScope.ONE_BROKER:
            faults.append(
                f"{name}={text!r}: the whole cluster acts upon it, so set it while the broker runs,"
                " with `odradek config set broker`"
            )
            continue
        try:
            definition.parse(text)
        except ConfigError as error:
            faults.append(str(error))
    return faults


def _topic_defaults(
    configs: ConfigsImage, node_id: int, static: Mapping[str, str]
) -> TopicSettings:
    key = (TopicSettings, node_id)
    remembered = configs.broker_cache
    settings = _cached(remembered, key, TopicSettings, static)
    if settings is None:
        layers = broker_layers(configs, node_id, static)
        nothing = ConfigLayer(ConfigSource.DYNAMIC_TOPIC, {})
        settings = _convert(
            TopicSettings,
            {
                definition.field_name: effective_value(
                    definition, resource_candidates(definition, nothing, layers)
                )[0]
                for definition in TOPIC_CONFIGS.values()
            },
        )
        remembered[key] = (static, settings)
    return settings


def _cached(
    cache: Mapping[object, object],
    key: object,
    kind: type[Settings],
    static: Mapping[str, str],
) -> Settings | None:
    remembered = cache.get(key)
    if remembered is None:
        return None
    assert isinstance(remembered, tuple)
    of_static, settings = remembered
    assert isinstance(settings, kind)
    return settings if of_static is static else None


def _convert(kind: type[Settings], values: Mapping[str, ConfigValue | None]) -> Settings:
    return msgspec.convert(values, kind)


def _parsed_or_none(name: str, text: str) -> ConfigValue | None:
    try:
        return TOPIC_CONFIGS[name].parse(text)
    except ConfigError:
        return None
