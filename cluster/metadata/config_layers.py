"""The layers of configuration, and the values that they give a key, in order of precedence.

The topic's own value comes first, then those of its synonyms in the broker's layers (this broker,
all brokers, the static configuration), then the defaults. The first is the effective value; all are
the key's synonyms in DescribeConfigs. Called by `settings` and `config_description`.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from odradek.cluster.metadata.config_definitions import (
    ConfigDefinition,
    ConfigError,
    ConfigSource,
    ConfigSynonym,
    ConfigValue,
)
from odradek.cluster.metadata.config_tables import broker_config
from odradek.cluster.metadata.image import ConfigResourceType, ConfigsImage

CLUSTER_DEFAULT_BROKER = ""
"""The name of the resource that stands for all brokers."""


class ConfigCandidate(NamedTuple):
    """A value that a layer has for a key, called `name` there; `factor` makes it the key's unit."""

    name: str
    text: str
    source: ConfigSource
    factor: int


class ConfigLayer(NamedTuple):
    """One layer of a broker's configuration."""

    source: ConfigSource
    configs: Mapping[str, str]


def broker_layers(
    configs: ConfigsImage, node_id: int, static: Mapping[str, str]
) -> tuple[ConfigLayer, ...]:
    """A broker's layers, the strongest first, without the defaults."""
    return (
        ConfigLayer(
            ConfigSource.DYNAMIC_BROKER, configs.of(ConfigResourceType.BROKER, str(node_id))
        ),
        ConfigLayer(
            ConfigSource.DYNAMIC_DEFAULT_BROKER,
            configs.of(ConfigResourceType.BROKER, CLUSTER_DEFAULT_BROKER),
        ),
        ConfigLayer(ConfigSource.STATIC_BROKER, static),
    )


def broker_candidates(
    definition: ConfigDefinition, layers: tuple[ConfigLayer, ...]
) -> Iterator[ConfigCandidate]:
    """The values of a broker's key."""
    return _candidates((ConfigSynonym(definition.name), *definition.synonyms), layers)


def resource_candidates(
    definition: ConfigDefinition, own: ConfigLayer, layers: tuple[ConfigLayer, ...]
) -> Iterator[ConfigCandidate]:
    """The values of a key of a topic or group, whose defaults are keys of the broker."""
    text = own.configs.get(definition.name)
    if text is not None:
        yield ConfigCandidate(definition.name, text, own.source, 1)
    if definition.synonyms:
        yield from _candidates(definition.synonyms, layers)
    elif definition.default is not None:
        yield ConfigCandidate(definition.name, definition.default, ConfigSource.DEFAULT, 1)


def effective_value(
    definition: ConfigDefinition, candidates: Iterator[ConfigCandidate]
) -> tuple[ConfigValue | None, ConfigSource]:
    """The first of the values that is valid, typed, in the key's unit, and where it comes from.

    Values are checked when they are set. A value that is not valid any more, from another release
    or an edited file, is skipped: it must not stop the process.
    """
    for candidate in candidates:
        try:
            return parse_candidate(definition, candidate), candidate.source
        except ConfigError:
            continue
    return None, ConfigSource.DEFAULT


def parse_candidate(definition: ConfigDefinition, candidate: ConfigCandidate) -> ConfigValue:
    """A candidate's value in the unit of `definition`; ConfigError if it is not valid there."""
    if candidate.factor == 1:
        return definition.parse(candidate.text)
    coarser = broker_config(candidate.name)
    assert coarser is not None
    value = coarser.parse(candidate.text)
    assert isinstance(value, int)
    return value * candidate.factor if value >= 0 else -1


def _candidates(
    names: tuple[ConfigSynonym, ...], layers: tuple[ConfigLayer, ...]
) -> Iterator[ConfigCandidate]:
    for source, configs in layers:
        for name, factor in names:
            text = configs.get(name)
            if text is not None:
                yield ConfigCandidate(name, text, source, factor)
    for name, factor in names:
        definition = broker_config(name)
        if definition is not None and definition.default is not None:
            yield ConfigCandidate(name, definition.default, ConfigSource.DEFAULT, factor)
