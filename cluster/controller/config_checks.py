"""Checks of the configs of a resource: keys, values, scopes, and constraints between values.

Errors have Kafka's codes: INVALID_CONFIG for configs of topics and groups, INVALID_REQUEST for
those of brokers. Of client metrics subscriptions unknown keys and intervals out of range are
INVALID_REQUEST, other values INVALID_CONFIG.
"""

from collections.abc import Callable, Mapping
from typing import Final

from odradek.cluster.controller.state import ControllerState
from odradek.cluster.metadata.broker_settings import CORDONED_LOG_DIRS
from odradek.cluster.metadata.client_metrics_settings import interval_error
from odradek.cluster.metadata.config_constraints import (
    AT_LEAST,
    AT_MOST,
    cordoned_fault,
    violated_constraints,
)
from odradek.cluster.metadata.config_definitions import (
    ConfigDefinition,
    ConfigError,
    ConfigScope,
    ConfigSource,
)
from odradek.cluster.metadata.config_layers import (
    CLUSTER_DEFAULT_BROKER,
    ConfigLayer,
    broker_layers,
)
from odradek.cluster.metadata.config_tables import (
    CLIENT_METRICS_CONFIGS,
    GROUP_CONFIGS,
    broker_config,
    topic_config,
)
from odradek.cluster.metadata.features import has_eligible_leader_replicas
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.settings import broker_number, topic_settings
from odradek.cluster.metadata.topic_names import topic_name_error
from odradek.protocol.errors import ApiError, ErrorCode

_KEYS: Final[Mapping[int, Callable[[str], ConfigDefinition | None]]] = {
    ConfigResourceType.TOPIC: topic_config,
    ConfigResourceType.BROKER: broker_config,
    ConfigResourceType.GROUP: GROUP_CONFIGS.get,
    ConfigResourceType.CLIENT_METRICS: CLIENT_METRICS_CONFIGS.get,
}


def check_resource(state: ControllerState, resource_type: int, name: str) -> ConfigResourceType:
    """The type of a resource that exists and may be configured; else ApiError."""
    match resource_type:
        case ConfigResourceType.TOPIC:
            _check_topic(state, name)
        case ConfigResourceType.BROKER:
            _check_broker(state, name)
        case ConfigResourceType.GROUP:
            if not name:
                text = "Default group resources are not allowed."
                raise ApiError(ErrorCode.INVALID_REQUEST, text)
        case ConfigResourceType.CLIENT_METRICS:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
        case _:
            # Also BROKER_LOGGER: no log level is stored.
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    return ConfigResourceType(resource_type)


def config_definition(resource_type: ConfigResourceType, key: str) -> ConfigDefinition:
    """The definition of a key; ApiError if the resource has no such key."""
    find = _KEYS.get(resource_type)
    definition = None if find is None else find(key)
    if definition is None:
        if resource_type is ConfigResourceType.CLIENT_METRICS:
            text = f"Unknown client metrics configuration: {key}"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        kind = resource_type.name.lower().replace("_", " ")
        code = ErrorCode.INVALID_REQUEST if find is None else ErrorCode.INVALID_CONFIG
        raise ApiError(code, f"Unknown {kind} config name: {key}")
    return definition


def check_value(resource_type: ConfigResourceType, name: str, key: str, value: str) -> None:
    """ApiError unless `key` may be set to `value` on the resource called `name`."""
    definition = config_definition(resource_type, key)
    if resource_type is ConfigResourceType.BROKER:
        check_scope(definition, name)
    try:
        definition.parse(value)
    except ConfigError as error:
        is_broker = resource_type is ConfigResourceType.BROKER
        code = ErrorCode.INVALID_REQUEST if is_broker else ErrorCode.INVALID_CONFIG
        raise ApiError(code, str(error)) from error


def check_scope(definition: ConfigDefinition, broker: str) -> None:
    """ApiError if the key cannot be changed for this broker while it runs."""
    if definition.scope is ConfigScope.READ_ONLY:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: [{definition.name}]. Set it in the broker's"
            " own configuration: a running broker follows its file, or says that it needs a"
            " restart.",
        )
    is_for_all = broker == CLUSTER_DEFAULT_BROKER
    if is_for_all and definition.scope in (ConfigScope.ONE_BROKER, ConfigScope.PER_BROKER):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs at default cluster level: [{definition.name}]. Name one"
            " broker.",
        )
    if definition.scope is ConfigScope.CLUSTER and not is_for_all:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{definition.name} must be the same on all brokers. Set it as the cluster-wide"
            " default, for the broker with the empty name (`odradek config set broker default`).",
        )


def check_topic_constraints(state: ControllerState, configs: Mapping[str, str]) -> None:
    """ApiError if the values, each valid by itself, contradict each other."""
    defaults = topic_settings(state.image, state.node_id, state.static, "")
    least = int(configs.get("min.compaction.lag.ms", defaults.min_compaction_lag_ms))
    most = int(configs.get("max.compaction.lag.ms", defaults.max_compaction_lag_ms))
    if least > most:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({least}) >"
            f" max.compaction.lag.ms ({most})",
        )


def check_group_bounds(state: ControllerState, configs: Mapping[str, str]) -> None:
    """ApiError if a group's value is outside of what the brokers allow."""
    layers = broker_layers(state.image.configs, state.node_id, state.static)
    for key, text in configs.items():
        definition = GROUP_CONFIGS.get(key)
        low, high = (None, None) if definition is None else definition.bounds
        error = None
        if low is not None and int(text) < broker_number(low, layers):
            error = f"{key} must be {AT_LEAST} {low}"
        elif high is not None and int(text) > broker_number(high, layers):
            error = f"{key} must be {AT_MOST} {high}"
        if error is not None:
            raise ApiError(ErrorCode.INVALID_CONFIG, error)
    prefix = state.broker_settings.errors_deadletterqueue_topic_name_prefix
    dead_letters = configs.get("errors.deadletterqueue.topic.name", "")
    if dead_letters and not dead_letters.startswith(prefix):
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"errors.deadletterqueue.topic.name must start with {prefix!r}, the value of"
            " errors.deadletterqueue.topic.name.prefix",
        )


def check_client_metrics(configs: Mapping[str, str]) -> None:
    """ApiError if clients cannot push at the interval of a subscription."""
    interval = CLIENT_METRICS_CONFIGS["interval.ms"]
    text = configs.get(interval.name, interval.default)
    assert text is not None
    error = interval_error(int(text))
    if error is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, error)


def check_broker_bounds(state: ControllerState, name: str, wanted: Mapping[str, str]) -> None:
    """ApiError if the new configs of a broker, or of all, contradict its other configs."""
    configs = state.image.configs
    before = configs.of(ConfigResourceType.BROKER, name)
    changed = {key for key in {*before, *wanted} if before.get(key) != wanted.get(key)}
    of_all = configs.of(ConfigResourceType.BROKER, CLUSTER_DEFAULT_BROKER)
    is_of_all = name == CLUSTER_DEFAULT_BROKER
    layers = (
        ConfigLayer(ConfigSource.DYNAMIC_BROKER, {} if is_of_all else wanted),
        ConfigLayer(ConfigSource.DYNAMIC_DEFAULT_BROKER, wanted if is_of_all else of_all),
        ConfigLayer(ConfigSource.STATIC_BROKER, state.static),
    )
    faults = violated_constraints(layers, changed)
    if faults:
        raise ApiError(ErrorCode.INVALID_REQUEST, "; ".join(faults))
    if CORDONED_LOG_DIRS in changed and CORDONED_LOG_DIRS in wanted:
        _check_cordoned(state, name, wanted[CORDONED_LOG_DIRS])


def _check_cordoned(state: ControllerState, name: str, value: str) -> None:
    """ApiError unless a broker has these log directories (KIP-1066)."""
    broker = state.image.brokers.get(int(name))
    fault = cordoned_fault(value, broker.log_dir_paths if broker is not None else ())
    if fault is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"requirement failed: {fault}")


def _check_topic(state: ControllerState, name: str) -> None:
    if not name:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Default topic resources are not allowed. Set the broker's keys for them.",
        )
    complaint = topic_name_error(name)
    if complaint is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)
    if name not in state.image.topics_by_name:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _check_broker(state: ControllerState, name: str) -> None:
    if name == CLUSTER_DEFAULT_BROKER:
        return
    if not (name.isascii() and name.isdecimal() and str(int(name)) == name):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Unable to parse broker name as a base 10 number: {name}"
        )
    if int(name) not in state.image.brokers:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker {name} is not registered.")


def check_min_insync_replicas(
    state: ControllerState,
    resource_type: ConfigResourceType,
    name: str,
    wanted: Mapping[str, str],
) -> None:
    """ApiError if the cluster-level min.insync.replicas would be removed while eligible leader
    replicas are on: they depend on one value for all brokers (KIP-966)."""
    key = "min.insync.replicas"
    image = state.image
    is_of_all = resource_type is ConfigResourceType.BROKER and name == CLUSTER_DEFAULT_BROKER
    if (
        is_of_all
        and has_eligible_leader_replicas(image)
        and key in image.configs.of(resource_type, name)
        and key not in wanted
    ):
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
        )
