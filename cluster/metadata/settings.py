"""The configs as the code uses them: typed, all layers applied, one attribute per key.

Settings are read from the image when they are needed, never captured at start, so that a change
takes effect with the image that brings it. They are computed once per `ConfigsImage` and kept
there: a lookup costs a dictionary access as long as no config changes. A topic that has no
configs of its own shares one object with all others of that kind; that and a broker's settings
outlive changes of other topics' configs.

`static` is the broker's own configuration. It must have passed `static_config_error`, and one
process passes the same mapping each time.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.config_definitions import ConfigError, ConfigScope, ConfigSource
from odradek.cluster.metadata.config_layers import (
    ConfigLayer,
    broker_candidates,
    broker_layers,
    effective_value,
    resource_candidates,
)
from odradek.cluster.metadata.config_schema import fields_of
from odradek.cluster.metadata.config_tables import GROUP_CONFIGS, broker_config
from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.cluster.metadata.image import ConfigResourceType, ConfigsImage, MetadataImage
from odradek.cluster.metadata.topic_settings import TopicSettings

S = TypeVar("S")

_NO_LAYER = ConfigLayer(ConfigSource.DEFAULT, {})


def topic_settings(
    image: MetadataImage, node_id: int, static: Mapping[str, str], name: str
) -> TopicSettings:
    """What holds for the topic `name` on the broker `node_id`, whether the topic exists or not."""
    configs = image.configs
    own = configs.of(ConfigResourceType.TOPIC, name)
    if not own:
        return _topic_defaults(configs, node_id, static)
    key = (TopicSettings, node_id, name)
    settings = _cached(configs.cache, key, static, TopicSettings)
    if settings is None:
        defaults = _topic_defaults(configs, node_id, static)
        settings = dataclasses.replace(defaults, **own_values(TopicSettings, own))
        configs.cache[key] = (static, settings)
    return settings


def broker_settings(
    image: MetadataImage, node_id: int, static: Mapping[str, str]
) -> BrokerSettings:
    """What holds for the broker `node_id`."""
    cache, key = image.configs.broker_cache, (BrokerSettings, node_id)
    settings = _cached(cache, key, static, BrokerSettings)
    if settings is None:
        layers = broker_layers(image.configs, node_id, static)
        bounds = _group_bounds(layers)
        settings = dataclasses.replace(_filled(BrokerSettings, layers), group_bounds=bounds)
        cache[key] = (static, settings)
    return settings


def listener_settings(
    kind: type[S],
    image: MetadataImage,
    node_id: int,
    static: Mapping[str, str],
    listener: str,
    mechanism: str = "",
) -> S:
    """What holds for one listener of the broker `node_id`, and with `mechanism` for one SASL
    mechanism there: a class of `LISTENER_SETTINGS`. What is set for the mechanism precedes what is
    set for the listener, and that what is set for all listeners, whichever layer it is in."""
    cache, key = image.configs.broker_cache, (kind, node_id, listener, mechanism)
    found = _cached(cache, key, static, kind)
    if found is None:
        layers = broker_layers(image.configs, node_id, static)
        found = settings_of_listener(kind, layers, listener, mechanism)
        cache[key] = (static, found)
    return found


def settings_of_listener(
    kind: type[S], layers: tuple[ConfigLayer, ...], listener: str, mechanism: str = ""
) -> S:
    """The same for these layers of a broker's configuration."""
    values: dict[str, Any] = {}
    prefixes = ("", f"{mechanism.lower()}.") if mechanism else ("",)
    for field, prefix in itertools.product(fields_of(kind), prefixes):
        of_listener = broker_config(listener_key(listener, f"{prefix}{field.definition.name}"))
        if of_listener is None:
            continue  # not a key that a mechanism can have
        value, source = effective_value(of_listener, broker_candidates(of_listener, layers))
        if source is not ConfigSource.DEFAULT:
            values[field.name] = field.value(value)
    return dataclasses.replace(_filled(kind, layers), **values)  # type: ignore[type-var]  # a settings class


def listener_key(listener: str, key: str) -> str:
    """The key for one listener: Kafka writes the listener's name in lower case there."""
    return f"listener.name.{listener.lower()}.{key}"


def share_group_settings(
    image: MetadataImage, node_id: int, static: Mapping[str, str], group_id: str
) -> ShareGroupSettings:
    """What holds for a share group, whether it has configs of its own or not."""
    configs = image.configs
    broker = broker_settings(image, node_id, static)
    own = configs.of(ConfigResourceType.GROUP, group_id)
    if not own:
        return broker.share
    key = (ShareGroupSettings, node_id, group_id)
    settings = _cached(configs.cache, key, broker, ShareGroupSettings)
    if settings is None:
        settings = of_group(broker.share, own, broker.group_bounds)
        configs.cache[key] = (broker, settings)
    return settings


def of_group(defaults: S, own: Mapping[str, str], bounds: Mapping[str, tuple[int, int]]) -> S:
    """A group's settings: the broker's, and its own within the bounds that the broker has now."""
    values = own_values(type(defaults), own, bounds)
    if not values:
        return defaults
    if "heartbeat_interval_ms" in values:
        values["is_interval_fixed"] = True
    return dataclasses.replace(defaults, **values)  # type: ignore[type-var]  # a settings class


def own_values(
    kind: type, own: Mapping[str, str], bounds: Mapping[str, tuple[int, int]] | None = None
) -> dict[str, Any]:
    """The fields of a settings class that a resource's own configs set.

    Values were checked when they were set. One that is not valid any more is skipped; one outside
    of the bounds of its key is replaced by the bound.
    """
    values: dict[str, Any] = {}
    for field in fields_of(kind):
        name = field.definition.name
        if field.is_broker_key or name not in own:
            continue
        try:
            typed = field.definition.parse(own[name])
        except ConfigError:
            continue
        if bounds and name in bounds and isinstance(typed, int):
            low, high = bounds[name]
            typed = min(max(typed, low), high)
        values[field.name] = field.value(typed)
    return values


def static_config_error(name: str, text: str) -> str | None:
    """Why a key cannot have this value in a broker's static configuration; None if it can. Unknown
    keys are errors too: a misspelled key must not be ignored."""
    definition = broker_config(name)
    if definition is None:
        return f"Unknown broker config name: {name}"
    if definition.scope is ConfigScope.ONE_BROKER:
        return (
            f"{name} cannot be set here, because all brokers act upon it. Set it while the broker"
            " runs, with `odradek config set broker`"
        )
    try:
        definition.parse(text)
    except ConfigError as error:
        return str(error)
    return None


def _topic_defaults(
    configs: ConfigsImage, node_id: int, static: Mapping[str, str]
) -> TopicSettings:
    key = (TopicSettings, node_id)
    settings = _cached(configs.broker_cache, key, static, TopicSettings)
    if settings is None:
        settings = _filled(TopicSettings, broker_layers(configs, node_id, static))
        configs.broker_cache[key] = (static, settings)
    return settings


def _filled(kind: type[S], layers: tuple[ConfigLayer, ...]) -> S:
    """An object of a settings class with the values that a broker's layers give its keys."""
    values: dict[str, object] = {}
    for field in fields_of(kind):
        definition = field.definition
        if field.is_broker_key:
            candidates = broker_candidates(definition, layers)
        else:
            candidates = resource_candidates(definition, _NO_LAYER, layers)
        values[field.name] = field.value(effective_value(definition, candidates)[0])
    for part in dataclasses.fields(kind):  # type: ignore[arg-type]  # a settings class
        if fields_of(type(part.default)):
            values[part.name] = _filled(type(part.default), layers)
    return kind(**values)


def _group_bounds(layers: tuple[ConfigLayer, ...]) -> dict[str, tuple[int, int]]:
    """The bounds of the groups' keys that have them, both included."""
    bounds = {}
    for name, definition in GROUP_CONFIGS.items():
        low, high = definition.bounds
        if high is not None:
            bounds[name] = (
                0 if low is None else broker_number(low, layers),
                broker_number(high, layers),
            )
    return bounds


def broker_number(name: str, layers: tuple[ConfigLayer, ...]) -> int:
    """The value of a broker's key that is a whole number."""
    definition = broker_config(name)
    assert definition is not None
    value, _ = effective_value(definition, broker_candidates(definition, layers))
    assert isinstance(value, int)
    return value


def _cached(
    cache: Mapping[object, tuple[object, object]], key: object, source: object, _kind: type[S]
) -> S | None:
    """What was computed for the key from this very source; None if nothing was."""
    kept = cache.get(key)
    return cast("S", kept[1]) if kept is not None and kept[0] is source else None
