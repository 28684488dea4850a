"""The configs as DescribeConfigs shows them: each key with its value, source and synonyms.

CreateTopics shows those of a new topic in the same way. A description lists all keys of a resource,
set or not: tools read all of them, change some and write all back. The caller checks that the
resource exists.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from odradek.cluster.metadata.config_definitions import (
    ConfigDefinition,
    ConfigError,
    ConfigScope,
    ConfigSource,
    ConfigValue,
    Definitions,
    config_text,
)
from odradek.cluster.metadata.config_layers import (
    CLUSTER_DEFAULT_BROKER,
    ConfigCandidate,
    ConfigLayer,
    broker_candidates,
    broker_layers,
    effective_value,
    parse_candidate,
    resource_candidates,
)
from odradek.cluster.metadata.config_tables import (
    BROKER_CONFIGS,
    CLIENT_METRICS_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    broker_config,
    topic_config,
)
from odradek.cluster.metadata.group_settings import EPHEMERAL, EPHEMERAL_PATTERNS, matches_any
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.protocol.messages.configs import DescribeConfigsResourceResult, DescribeConfigsSynonym


def describe_topic(
    image: MetadataImage,
    node_id: int,
    static: Mapping[str, str],
    name: str,
    *,
    overrides: Mapping[str, str] | None = None,
) -> list[DescribeConfigsResourceResult]:
    """All keys of a topic. `overrides` stands in for the topic's own configs, for one that does not
    exist yet.
    """
    configs = image.configs.of(ConfigResourceType.TOPIC, name) if overrides is None else overrides
    own = ConfigLayer(ConfigSource.DYNAMIC_TOPIC, configs)
    layers = broker_layers(image.configs, node_id, static)
    return [
        _describe(definition, resource_candidates(definition, own, layers))
        for definition in _described(TOPIC_CONFIGS, topic_config, own.configs)
    ]


def describe_group(
    image: MetadataImage, node_id: int, static: Mapping[str, str], name: str
) -> list[DescribeConfigsResourceResult]:
    """All keys of a group, whether there is one of that name or not."""
    own = ConfigLayer(ConfigSource.GROUP, image.configs.of(ConfigResourceType.GROUP, name))
    layers = broker_layers(image.configs, node_id, static)
    return [
        _describe(definition, _candidates_of_group(definition, name, own, layers))
        for definition in GROUP_CONFIGS.values()
    ]


def _candidates_of_group(
    definition: ConfigDefinition, name: str, own: ConfigLayer, layers: tuple[ConfigLayer, ...]
) -> Iterator[ConfigCandidate]:
    found = resource_candidates(definition, own, layers)
    if definition.name != EPHEMERAL:
        yield from found
        return
    # What is said of the group by name comes between its own value and the default.
    patterns, source = effective_value(
        BROKER_CONFIGS[EPHEMERAL_PATTERNS],
        broker_candidates(BROKER_CONFIGS[EPHEMERAL_PATTERNS], layers),
    )
    for candidate in found:
        if candidate.source is ConfigSource.DEFAULT:
            assert isinstance(patterns, tuple)
            if matches_any(name, patterns):
                yield ConfigCandidate(EPHEMERAL_PATTERNS, "true", source, 1)
        yield candidate


def describe_client_metrics(image: MetadataImage, name: str) -> list[DescribeConfigsResourceResult]:
    """All keys of a client metrics subscription, whether there is one of that name or not. As in
    Kafka a default has no synonym."""
    own = ConfigLayer(
        ConfigSource.CLIENT_METRICS, image.configs.of(ConfigResourceType.CLIENT_METRICS, name)
    )
    described = [
        _describe(definition, resource_candidates(definition, own, ()))
        for definition in CLIENT_METRICS_CONFIGS.values()
    ]
    for config in described:
        config.synonyms = [
            synonym for synonym in config.synonyms if synonym.source != ConfigSource.DEFAULT
        ]
    return described


def describe_broker(
    image: MetadataImage, node_id: int, static: Mapping[str, str]
) -> list[DescribeConfigsResourceResult]:
    """All keys of the broker `node_id`, whose own configuration is `static`."""
    layers = broker_layers(image.configs, node_id, static)
    return [
        _describe(definition, broker_candidates(definition, layers))
        for definition in _described(
            BROKER_CONFIGS, broker_config, *(each.configs for each in layers)
        )
    ]


def describe_cluster_default(image: MetadataImage) -> list[DescribeConfigsResourceResult]:
    """The keys that were set for all brokers; as in Kafka only those that were."""
    configs = image.configs.of(ConfigResourceType.BROKER, CLUSTER_DEFAULT_BROKER)
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    return [
        _describe(definition, [ConfigCandidate(name, text, source, 1)])
        for name, text in sorted(configs.items())
        if (definition := broker_config(name)) is not None
    ]


def _described(
    table: Definitions,
    find: Callable[[str], ConfigDefinition | None],
    *layers: Mapping[str, str],
) -> Iterator[ConfigDefinition]:
    """The keys of a table, and those that are described only if they are set."""
    yield from table.values()
    for name in sorted({name for configs in layers for name in configs if name not in table}):
        definition = find(name)
        if definition is not None:
            yield definition


def _describe(
    definition: ConfigDefinition, candidates: Iterable[ConfigCandidate]
) -> DescribeConfigsResourceResult:
    valid: list[tuple[ConfigCandidate, ConfigValue]] = []
    for candidate in candidates:
        try:
            valid.append((candidate, parse_candidate(definition, candidate)))
        except ConfigError:
            continue
    value, source = (None, ConfigSource.DEFAULT) if not valid else (valid[0][1], valid[0][0].source)
    return DescribeConfigsResourceResult(
        name=definition.name,
        value=None if definition.is_sensitive else config_text(value),
        read_only=definition.scope is ConfigScope.READ_ONLY,
        is_default=source is ConfigSource.DEFAULT,
        config_source=source,
        is_sensitive=definition.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(
                name=candidate.name,
                value=None if definition.is_sensitive else candidate.text,
                source=candidate.source,
            )
            for candidate, _ in valid
        ],
        config_type=definition.type,
        documentation=definition.documentation,
    )
