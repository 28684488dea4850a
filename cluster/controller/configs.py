"""AlterConfigs and IncrementalAlterConfigs: the changes of a resource happen all or not at all.

Both compute what the resource's configs shall be, and compare that with what they are. A value that
does not change makes no record.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum

from odradek.cluster.controller.commands import (
    AlterConfigs,
    ConfigOperation,
    ConfigsReply,
    IncrementalAlterConfigs,
    ResourceOperations,
    ResourceResult,
)
from odradek.cluster.controller.config_checks import (
    check_broker_bounds,
    check_client_metrics,
    check_group_bounds,
    check_min_insync_replicas,
    check_resource,
    check_scope,
    check_topic_constraints,
    check_value,
    config_definition,
)
from odradek.cluster.controller.elections import partition_changes_after
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.metadata.config_definitions import ConfigDefinition, ConfigSource, ConfigType
from odradek.cluster.metadata.config_layers import (
    ConfigLayer,
    broker_layers,
    effective_value,
    resource_candidates,
)
from odradek.cluster.metadata.config_tables import broker_config
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import ConfigChanged, Record
from odradek.protocol.errors import ApiError, ErrorCode


class AlterConfigOperation(IntEnum):
    """What IncrementalAlterConfigs can do to a key (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def alter_configs(state: ControllerState, command: AlterConfigs) -> ControllerResult:
    """Give each resource the configs named and no others."""
    resources = [
        ResourceOperations(
            resource.resource_type,
            resource.resource_name,
            tuple(
                ConfigOperation(key, AlterConfigOperation.SET, value)
                for key, value in resource.configs
            ),
        )
        for resource in command.resources
    ]
    return _alter_each(state, resources, keeps_others=False, validate_only=command.validate_only)


def incremental_alter_configs(
    state: ControllerState, command: IncrementalAlterConfigs
) -> ControllerResult:
    """Change single keys of each resource."""
    return _alter_each(
        state, command.resources, keeps_others=True, validate_only=command.validate_only
    )


def _alter_each(
    state: ControllerState,
    resources: Sequence[ResourceOperations],
    *,
    keeps_others: bool,
    validate_only: bool,
) -> ControllerResult:
    records: list[Record] = []
    results: list[ResourceResult] = []
    times_named = Counter(
        (resource.resource_type, resource.resource_name) for resource in resources
    )
    for resource in resources:
        code, message = ErrorCode.NONE, None
        try:
            if times_named[resource.resource_type, resource.resource_name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate resource.")
            records.extend(_alter(state, resource, keeps_others=keeps_others))
        except ApiError as error:
            code, message = error.code, error.message
        results.append(
            ResourceResult(resource.resource_type, resource.resource_name, code, message)
        )
    if validate_only:
        records.clear()
    records.extend(partition_changes_after(state, records))
    return ControllerResult(records=tuple(records), reply=ConfigsReply(tuple(results)))


def _alter(
    state: ControllerState, resource: ResourceOperations, *, keeps_others: bool
) -> list[Record]:
    name = resource.resource_name
    resource_type = check_resource(state, resource.resource_type, name)
    keys = Counter(operation.key for operation in resource.operations)
    twice = sorted(key for key, count in keys.items() if count > 1)
    if twice:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys: {', '.join(twice)}"
        )
    wanted = dict(state.image.configs.of(resource_type, name)) if keeps_others else {}
    for operation in resource.operations:
        _apply(state, resource_type, name, operation, wanted)
    return _change_records(state, resource_type, name, wanted)


def _apply(
    state: ControllerState,
    resource_type: ConfigResourceType,
    name: str,
    operation: ConfigOperation,
    wanted: dict[str, str],
) -> None:
    key = operation.key
    match operation.operation:
        case AlterConfigOperation.SET:
            wanted[key] = _checked_value(resource_type, name, key, operation.value)
        case AlterConfigOperation.DELETE:
            definition = broker_config(key)
            if resource_type is ConfigResourceType.BROKER and definition is not None:
                check_scope(definition, name)
            wanted.pop(key, None)
        case AlterConfigOperation.APPEND | AlterConfigOperation.SUBTRACT:
            definition = config_definition(resource_type, key)
            if not is_list(definition):
                verb = AlterConfigOperation(operation.operation).name
                raise ApiError(
                    ErrorCode.INVALID_CONFIG,
                    f"Can't {verb} to key {key} because its type is not LIST.",
                )
            text = _checked_value(resource_type, name, key, operation.value)
            before = _current_list(state, resource_type, definition, wanted)
            wanted[key] = list_after(definition, before, operation.operation, text)
        case _:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Unknown operation type {operation.operation}."
            )


def is_list(definition: ConfigDefinition) -> bool:
    """Whether items can be appended to and subtracted from the key. As in Kafka, not if it is that
    of one listener: without a value it has that of the key for all."""
    is_of_listener = definition.name.startswith("listener.name.")
    return definition.type is ConfigType.LIST and not is_of_listener


def list_after(
    definition: ConfigDefinition, before: Sequence[str], operation: int, text: str
) -> str:
    """The list when the items of `text` are appended (those that are there stay once) or
    subtracted."""
    items = _list_items(definition, text)
    if operation == AlterConfigOperation.APPEND:
        after = [*before, *(item for item in items if item not in before)]
    else:
        after = [item for item in before if item not in items]
    return ",".join(after)


def own_list(definition: ConfigDefinition, own: Mapping[str, str]) -> list[str]:
    """The list in the configs of a broker, or else the default: what a broker has in its own
    configuration is not known here, nor to Kafka's controller."""
    return _list_items(definition, own.get(definition.name, definition.default or ""))


def _checked_value(
    resource_type: ConfigResourceType, name: str, key: str, value: str | None
) -> str:
    if value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {key}")
    check_value(resource_type, name, key, value)
    return value.strip()


def _current_list(
    state: ControllerState,
    resource_type: ConfigResourceType,
    definition: ConfigDefinition,
    wanted: Mapping[str, str],
) -> list[str]:
    """The list before the operation: the resource's own value, or else the effective one."""
    if resource_type is ConfigResourceType.TOPIC:
        candidates = resource_candidates(
            definition,
            ConfigLayer(ConfigSource.DYNAMIC_TOPIC, wanted),
            broker_layers(state.image.configs, state.node_id, state.static),
        )
        value, _ = effective_value(definition, candidates)
        return list(value) if isinstance(value, tuple) else []
    return own_list(definition, wanted)


def _list_items(definition: ConfigDefinition, text: str) -> list[str]:
    value = definition.parse(text)
    return list(value) if isinstance(value, tuple) else []


def _change_records(
    state: ControllerState, resource_type: ConfigResourceType, name: str, wanted: Mapping[str, str]
) -> list[Record]:
    """The records that change a resource's configs; ApiError if they contradict each other."""
    match resource_type:
        case ConfigResourceType.TOPIC:
            check_topic_constraints(state, wanted)
        case ConfigResourceType.GROUP:
            check_group_bounds(state, wanted)
        case ConfigResourceType.BROKER:
            check_broker_bounds(state, name, wanted)
        case ConfigResourceType.CLIENT_METRICS:
            check_client_metrics(wanted)
        case _:
            pass
    check_min_insync_replicas(state, resource_type, name, wanted)
    before = state.image.configs.of(resource_type, name)
    records: list[Record] = [
        ConfigChanged(resource_type, name, key, None) for key in before if key not in wanted
    ]
    records.extend(
        ConfigChanged(resource_type, name, key, value)
        for key, value in wanted.items()
        if before.get(key) != value
    )
    return records
