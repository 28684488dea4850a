"""DescribeConfigs (32, versions 0 to 4), AlterConfigs (33, 0 to 2), IncrementalAlterConfigs (44, 0
and 1) and ListConfigResources (74, 0 and 1).

DescribeConfigs: v0 marks values that are the default; v1 has the source of a value, with synonyms
(KIP-226); v3 type and documentation (KIP-569). A null or empty list of keys means all keys.
AlterConfigs replaces all configs of a resource and exists for older clients.
IncrementalAlterConfigs changes single keys (KIP-339). ListConfigResources: v0 lists client metrics
subscriptions only (KIP-714), v1 any type (KIP-1142). The levels of loggers are configs of the type
BROKER_LOGGER (KIP-412): a broker describes and changes its own, without the controller.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from odradek.cluster.controller.commands import (
    AlterConfigs,
    ConfigOperation,
    IncrementalAlterConfigs,
    ResourceConfigs,
    ResourceOperations,
)
from odradek.cluster.controller.configs import (
    AlterConfigOperation,
    is_list,
    list_after,
    own_list,
)
from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.authorizer_settings import ACCESS_CONTROL_KEYS
from odradek.cluster.metadata.config_definitions import ConfigError, ConfigSource, ConfigType
from odradek.cluster.metadata.config_description import (
    describe_broker,
    describe_client_metrics,
    describe_cluster_default,
    describe_group,
    describe_topic,
)
from odradek.cluster.metadata.config_layers import CLUSTER_DEFAULT_BROKER
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS, broker_config
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.listener_addresses import LISTENER_KEYS
from odradek.cluster.metadata.sasl_settings import says_who_authenticates
from odradek.cluster.metadata.tls_settings import says_who_clients_are
from odradek.cluster.metadata.topic_names import topic_name_error
from odradek.node.log_levels import LOGGERS, check_level, level_chain
from odradek.node.node_overrides import node_overrides, overrides_after
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import (
    LoopYielder,
    command_batches,
    iterate_cooperatively,
)
from odradek.node.router.telemetry.subscriptions import check_match
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)

ALTER_TIMEOUT_MS = 30_000
"""The requests have no timeout field. The default of clients' request.timeout.ms."""
CONFIGS_MAX = 500_000
"""Configs in one DescribeConfigs response: those of some 10,000 topics, or 40 MB."""
DOCUMENTED_CONFIGS_MAX = 100_000
"""The same with documentation."""
RESOURCES_ALTERED_MAX = 10_000
"""Kafka's limit of the records that one request writes to the metadata log."""
_DESCRIPTION_COST = 10
_LISTENER_LISTS = frozenset({"listeners", "advertised.listeners"})
_LOGGER = ConfigResourceType.BROKER_LOGGER
_LISTED_TYPES = frozenset(ConfigResourceType)

E = TypeVar("E", ResourceConfigs, ResourceOperations)
Alterable = TypeVar("Alterable", AlterConfigsResource, IncrementalAlterConfigsResource)


async def handle_describe_configs(
    request: DescribeConfigsRequest, context: RequestContext, services: Services
) -> DescribeConfigsResponse:
    """All configs of each resource. Needs DESCRIBE_CONFIGS on the topic, group or cluster.

    What all resources say together is bounded: those beyond get POLICY_VIOLATION.
    """
    left = DOCUMENTED_CONFIGS_MAX if request.include_documentation else CONFIGS_MAX
    pace = LoopYielder(context)
    # Resources that are named twice, and topics with the same configs, are described once.
    described: dict[Hashable, list[DescribeConfigsResourceResult]] = {}
    results = []
    for resource in request.resources:
        await pace.step()
        result = DescribeConfigsResult(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        results.append(result)
        try:
            _authorize(resource, AclOperation.DESCRIBE_CONFIGS, context, services)
            _check(resource, services)
            key = _same_configs_key(resource, services)
            configs = described.get(key)
            if configs is None:
                await pace.step(_DESCRIPTION_COST)
                configs = described[key] = _describe(resource, services)
                for config in configs:
                    if not request.include_synonyms:
                        config.synonyms = []
                    if not request.include_documentation:
                        config.documentation = None
            if resource.configuration_keys:
                wanted = frozenset(resource.configuration_keys)
                configs = [config for config in configs if config.name in wanted]
            if len(configs) > left:
                raise ApiError(
                    ErrorCode.POLICY_VIOLATION,
                    "The request asks for too many configs. Ask for fewer resources at a time.",
                )
            left -= len(configs)
            result.configs = configs
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
    return DescribeConfigsResponse(results=results)


async def handle_alter_configs(
    request: AlterConfigsRequest, context: RequestContext, services: Services
) -> AlterConfigsResponse:
    """Replace the configs of each resource. Needs ALTER_CONFIGS on the topic, group or cluster."""

    def entry(resource: AlterConfigsResource) -> ResourceConfigs:
        configs = tuple((config.name, config.value) for config in resource.configs)
        return ResourceConfigs(resource.resource_type, resource.resource_name, configs)

    def command(entries: tuple[ResourceConfigs, ...]) -> AlterConfigs:
        return AlterConfigs(entries, request.validate_only)

    responses = await _alter(request.resources, entry, command, context, services)
    return AlterConfigsResponse(responses=responses)


async def handle_incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, context: RequestContext, services: Services
) -> IncrementalAlterConfigsResponse:
    """Change single keys. Needs ALTER_CONFIGS on the topic, group or cluster."""
    logger_answers = await _alter_loggers(request, context, services)
    for resource in request.resources:
        _complete_listener_lists(resource, services)

    def entry(resource: IncrementalAlterConfigsResource) -> ResourceOperations:
        operations = tuple(
            ConfigOperation(config.name, config.config_operation, config.value)
            for config in resource.configs
        )
        return ResourceOperations(resource.resource_type, resource.resource_name, operations)

    def command(entries: tuple[ResourceOperations, ...]) -> IncrementalAlterConfigs:
        return IncrementalAlterConfigs(entries, request.validate_only)

    others = [each for each in request.resources if each.resource_type != _LOGGER]
    answers = iter(await _alter(others, entry, command, context, services))
    return IncrementalAlterConfigsResponse(
        responses=[
            next(logger_answers if each.resource_type == _LOGGER else answers)
            for each in request.resources
        ]
    )


async def handle_list_config_resources(
    request: ListConfigResourcesRequest, context: RequestContext, services: Services
) -> ListConfigResourcesResponse:
    """The resources that can have configs. Needs DESCRIBE_CONFIGS on the cluster."""
    services.authorizer.authorize(context, AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    if context.api_version == 0:
        wanted: Iterable[int] = (ConfigResourceType.CLIENT_METRICS,)
    else:
        wanted = dict.fromkeys(request.resource_types) or tuple(ConfigResourceType)
    if not _LISTED_TYPES.issuperset(wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ListedConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type in wanted
            async for name in iterate_cooperatively(_names(services.image, resource_type), context)
        ]
    )


# -- describing ------------------------------------------------------------------------------


def _check(resource: DescribeConfigsResource, services: Services) -> None:
    """ApiError if it is a topic that does not exist."""
    name = resource.resource_name
    if resource.resource_type == ConfigResourceType.TOPIC:
        complaint = topic_name_error(name)
        if complaint is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)
        if name not in services.image.topics_by_name:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name!r} does not exist.")


def _same_configs_key(resource: DescribeConfigsResource, services: Services) -> Hashable:
    """Equal for resources that have the same configs."""
    kind, name = resource.resource_type, resource.resource_name
    if kind == ConfigResourceType.TOPIC:
        return kind, frozenset(services.image.configs.of(ConfigResourceType.TOPIC, name).items())
    return kind, name


def _describe(
    resource: DescribeConfigsResource, services: Services
) -> list[DescribeConfigsResourceResult]:
    image, name = services.image, resource.resource_name
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            return describe_topic(image, services.node_id, services.static_configs, name)
        case ConfigResourceType.BROKER if name == CLUSTER_DEFAULT_BROKER:
            return describe_cluster_default(image)
        case ConfigResourceType.BROKER:
            # Only the broker itself has its static configs.
            _check_broker_name(name, services.node_id, "or empty string, ")
            return describe_broker(image, services.node_id, services.static_configs)
        case ConfigResourceType.BROKER_LOGGER:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
            _check_broker_name(name, services.node_id, "")
            return [_describe_logger(logger, services) for logger in LOGGERS]
        case ConfigResourceType.CLIENT_METRICS:
            if not name:
                text = "Client metrics subscription name must not be empty"
                raise ApiError(ErrorCode.INVALID_REQUEST, text)
            return describe_client_metrics(image, name)
        case ConfigResourceType.GROUP:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return describe_group(image, services.node_id, services.static_configs, name)
        case unknown:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {unknown}")


def _check_broker_name(name: str, node_id: int, alternative: str) -> None:
    """ApiError, with Kafka's text, unless it is the name of this broker."""
    if not _is_integer(name):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        )
    if int(name) != node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {node_id} {alternative}but received {name}",
        )


def _is_integer(name: str) -> bool:
    return name.isascii() and name.removeprefix("-").isdecimal() and len(name) <= 11


def _describe_logger(name: str, services: Services) -> DescribeConfigsResourceResult:
    config = services.node_control.config
    chain = level_chain(name, config.log_level, config.log_levels)
    return DescribeConfigsResourceResult(
        name=name,
        value=chain[0][1],
        config_source=ConfigSource.DYNAMIC_BROKER_LOGGER,
        synonyms=[
            DescribeConfigsSynonym(name=logger, value=level, source=source)
            for logger, level, source in chain
        ],
        config_type=ConfigType.STRING,
        documentation=f"The least level of the lines that {name} logs, until the broker restarts.",
    )


def _names(image: MetadataImage, resource_type: int) -> Iterable[str]:
    match resource_type:
        case ConfigResourceType.TOPIC:
            return sorted(image.topics_by_name)
        case ConfigResourceType.BROKER | ConfigResourceType.BROKER_LOGGER:
            return (str(broker_id) for broker_id in sorted(image.brokers))
        case _:
            return sorted(
                resource.name for resource in image.configs if resource.type == resource_type
            )


# -- altering --------------------------------------------------------------------------------


async def _alter(
    resources: Sequence[Alterable],
    entry_of: Callable[[Alterable], E],
    command_of: Callable[[tuple[E, ...]], AlterConfigs | IncrementalAlterConfigs],
    context: RequestContext,
    services: Services,
) -> list[AlterConfigsResourceResponse]:
    """Submit the resources that the client may alter. One answer per resource, in order."""
    answers = []
    allowed = []
    entries = []
    of_node: list[AlterConfigsResourceResponse] = []
    changes_listeners = False
    is_too_large = len(resources) > RESOURCES_ALTERED_MAX
    async for resource in iterate_cooperatively(resources, context):
        answer = AlterConfigsResourceResponse(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        answers.append(answer)
        try:
            _authorize(resource, AclOperation.ALTER_CONFIGS, context, services)
            _authorize_access_control(resource, context, services)
            if resource.resource_type == ConfigResourceType.CLIENT_METRICS:
                for config in resource.configs:
                    if config.name == "match" and config.value:
                        check_match(config.value)
            if is_too_large:
                raise ApiError(
                    ErrorCode.POLICY_VIOLATION,
                    f"One request can alter at most {RESOURCES_ALTERED_MAX} resources.",
                )
            changes_listeners |= await _check_listeners(resource, services)
            if await _check_node_settings(resource, services):
                of_node.append(answer)
        except ApiError as error:
            answer.error_code, answer.error_message = error.code, error.message
        else:
            allowed.append(answer)
            entries.append(entry_of(resource))
    by_resource: dict[tuple[int, str], list[tuple[AlterConfigsResourceResponse, E]]] = {}
    for answer, entry in zip(allowed, entries, strict=True):
        key = answer.resource_type, answer.resource_name
        by_resource.setdefault(key, []).append((answer, entry))
    # What is named twice stays together: it is an error.
    for some in command_batches(by_resource.values()):
        command = command_of(tuple(entry for _, entry in some))
        try:
            results = (await services.controller.submit(command, ALTER_TIMEOUT_MS)).results
        except ApiError as error:
            for answer, _ in some:
                answer.error_code, answer.error_message = error.code, error.message
            continue
        for (answer, _), result in zip(some, results, strict=True):
            answer.error_code, answer.error_message = result.error_code, result.error_message
    if changes_listeners and services.listeners is not None:
        services.listeners.discard()
        await services.listeners.wait_until_registered()
    if of_node:
        await _wait_for_node_settings(of_node, services)
    return answers


async def _wait_for_node_settings(
    answers: list[AlterConfigsResourceResponse], services: Services
) -> None:
    """Until the settings of the node that are set through the cluster are in effect."""
    wanted = node_overrides(services.image, services.node_id)
    try:
        await services.node_control.change_settings(wanted, is_trial=False)
    except ApiError as error:
        for answer in answers:
            if not answer.error_code:
                answer.error_code, answer.error_message = error.code, error.message


def _authorize_access_control(
    resource: AlterConfigsResource | IncrementalAlterConfigsResource,
    context: RequestContext,
    services: Services,
) -> None:
    """ALTER on the cluster for the keys that say who may do everything, who is who, and who comes
    in: see AuthorizerSettings, says_who_clients_are and LISTENER_KEYS."""
    if resource.resource_type != ConfigResourceType.BROKER:
        return
    changed = {config.name for config in resource.configs}
    if isinstance(resource, AlterConfigsResource):
        # What is not named is removed.
        own = services.image.configs.of(ConfigResourceType.BROKER, resource.resource_name)
        changed.update(own)
    if (
        not ACCESS_CONTROL_KEYS.isdisjoint(changed)
        or not LISTENER_KEYS.isdisjoint(changed)
        or any(map(says_who_clients_are, changed))
        or any(map(says_who_authenticates, changed))
    ):
        services.authorizer.authorize(context, AclOperation.ALTER, ResourceType.CLUSTER)


def _is_own(
    resource: AlterConfigsResource | IncrementalAlterConfigsResource, services: Services
) -> bool:
    is_broker = resource.resource_type == ConfigResourceType.BROKER
    return is_broker and resource.resource_name == str(services.node_id)


def _complete_listener_lists(resource: IncrementalAlterConfigsResource, services: Services) -> None:
    """Replace what is appended to or subtracted from the lists of this broker's listeners by the
    lists that result: the controller does not know this broker's own configuration."""
    listeners = services.listeners
    if listeners is None or not _is_own(resource, services):
        return
    for config in resource.configs:
        if config.name not in _LISTENER_LISTS or not config.value:
            continue
        named = [item.strip() for item in config.value.split(",")]
        before = listeners.items(config.name)
        if config.config_operation == AlterConfigOperation.APPEND:
            after = before + [item for item in named if item not in before]
        elif config.config_operation == AlterConfigOperation.SUBTRACT:
            after = [item for item in before if item not in named]
        else:
            continue
        config.config_operation, config.value = AlterConfigOperation.SET, ",".join(after)


def _changes(
    resource: AlterConfigsResource | IncrementalAlterConfigsResource, services: Services
) -> tuple[dict[str, str | None], bool]:
    """The new values of a broker's configs (None: removed), and whether others stay."""
    changes: dict[str, str | None] = {}
    own = services.image.configs.of(ConfigResourceType.BROKER, resource.resource_name)
    for config in resource.configs:
        if isinstance(config, IncrementalAlterableConfig):
            if config.config_operation == AlterConfigOperation.DELETE:
                changes[config.name] = None
                continue
            if config.config_operation != AlterConfigOperation.SET:
                definition = broker_config(config.name)
                if definition is not None and config.value is not None and is_list(definition):
                    with suppress(ConfigError):  # the controller refuses it
                        changes[config.name] = list_after(
                            definition,
                            own_list(definition, own),
                            config.config_operation,
                            config.value,
                        )
                continue
        changes[config.name] = config.value
    return changes, isinstance(resource, IncrementalAlterConfigsResource)


async def _check_node_settings(
    resource: AlterConfigsResource | IncrementalAlterConfigsResource, services: Services
) -> bool:
    """ApiError if this node cannot have the settings that the new configs give it. Returns whether
    they are others than before."""
    if resource.resource_type != ConfigResourceType.BROKER:
        return False
    if resource.resource_name not in (str(services.node_id), CLUSTER_DEFAULT_BROKER):
        return False
    changes, keeps_others = _changes(resource, services)
    after = overrides_after(
        services.image,
        services.node_id,
        resource.resource_name,
        changes,
        keeps_others=keeps_others,
    )
    if after == node_overrides(services.image, services.node_id):
        return False
    with suppress(ConfigError):  # the controller refuses it
        for key, value in after.items():
            BROKER_CONFIGS[key].parse(value)
        await services.node_control.change_settings(after, is_trial=True)
    return True


async def _check_listeners(
    resource: AlterConfigsResource | IncrementalAlterConfigsResource, services: Services
) -> bool:
    """ApiError if this broker cannot have the listeners, or its listeners not the TLS, that the new
    configs give them. Returns whether they may be others than before."""
    if not _is_own(resource, services):
        return False
    changes, keeps_others = _changes(resource, services)
    await services.tls_listeners.check(changes, keeps_others=keeps_others)
    if services.listeners is None or (keeps_others and LISTENER_KEYS.isdisjoint(changes)):
        return False
    await services.listeners.check(changes, keeps_others=keeps_others)
    return True


def _authorize(
    resource: DescribeConfigsResource | AlterConfigsResource | IncrementalAlterConfigsResource,
    operation: AclOperation,
    context: RequestContext,
    services: Services,
) -> None:
    name = resource.resource_name
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            services.authorizer.authorize(context, operation, ResourceType.TOPIC, name)
        case ConfigResourceType.GROUP:
            services.authorizer.authorize(context, operation, ResourceType.GROUP, name)
        case _:
            services.authorizer.authorize(context, operation, ResourceType.CLUSTER)


# -- loggers ---------------------------------------------------------------------------------


async def _alter_loggers(
    request: IncrementalAlterConfigsRequest, context: RequestContext, services: Services
) -> Iterator[AlterConfigsResourceResponse]:
    """Change the levels of this broker's loggers on all of its processes. The answers to the
    resources of that type, in order."""
    answers = []
    times_named = Counter(r.resource_name for r in request.resources if r.resource_type == _LOGGER)
    for resource in request.resources:
        if resource.resource_type != _LOGGER:
            continue
        answer = AlterConfigsResourceResponse(
            error_message=None, resource_type=_LOGGER, resource_name=resource.resource_name
        )
        answers.append(answer)
        try:
            _authorize(resource, AclOperation.ALTER_CONFIGS, context, services)
            if times_named[resource.resource_name] > 1:
                text = "Each resource must appear at most once."
                raise ApiError(ErrorCode.INVALID_REQUEST, text)
            changes = _level_changes(resource, services.node_id)
            if changes and not request.validate_only:
                await services.node_control.change_log_levels(changes)
        except ApiError as error:
            answer.error_code, answer.error_message = error.code, error.message
    return iter(answers)


def _level_changes(
    resource: IncrementalAlterConfigsResource, node_id: int
) -> Mapping[str, str | None]:
    """The levels by logger; ApiError, with Kafka's texts, if one of them cannot be changed."""
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    delete = AlterConfigOperation.DELETE
    nulls = [c.name for c in resource.configs if c.value is None and c.config_operation != delete]
    if nulls:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}"
        )
    broker = resource.resource_name
    if not _is_integer(broker):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {broker}"
        )
    if int(broker) != node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected node id. Expected {node_id}, but received {broker}",
        )
    changes: dict[str, str | None] = {}
    for config in resource.configs:
        match config.config_operation:
            case AlterConfigOperation.SET | AlterConfigOperation.DELETE:
                is_set = config.config_operation == AlterConfigOperation.SET
                changes[config.name] = config.value if is_set else None
                check_level(config.name, changes[config.name])
            case AlterConfigOperation.APPEND | AlterConfigOperation.SUBTRACT as operation:
                name = AlterConfigOperation(operation).name
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"{name} operation is not allowed for the BROKER_LOGGER resource",
                )
            case unknown:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unknown operation type {unknown} is not allowed for the BROKER_LOGGER"
                    " resource",
                )
    return changes
