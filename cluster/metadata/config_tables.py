"""The config keys of each type of resource, by name: Kafka's and ours.

Put together from the settings classes and from Kafka's keys without effect.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from odradek.cluster.metadata.authorizer_settings import AuthorizerSettings
from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.client_metrics_settings import ClientMetricsSettings
from odradek.cluster.metadata.config_definitions import (
    WITHOUT_EFFECT,
    ConfigDefinition,
    ConfigScope,
    ConfigType,
    Definitions,
)
from odradek.cluster.metadata.config_schema import fields_of
from odradek.cluster.metadata.connection_settings import ConnectionSettings
from odradek.cluster.metadata.delegation_token_settings import DelegationTokenSettings
from odradek.cluster.metadata.group_settings import (
    ConsumerGroupSettings,
    GroupPolicySettings,
    ShareGroupSettings,
    StreamsGroupSettings,
)
from odradek.cluster.metadata.no_effect_configs import (
    BROKER_KEYS,
    OLDER_BROKER_KEYS,
    OLDER_TOPIC_KEYS,
    TOPIC_KEYS,
)
from odradek.cluster.metadata.node_settings import StartupSettings
from odradek.cluster.metadata.sasl_settings import SaslSettings
from odradek.cluster.metadata.tls_settings import TlsSettings
from odradek.cluster.metadata.topic_settings import TopicSettings

GROUP_SETTINGS: Final = (
    ConsumerGroupSettings,
    StreamsGroupSettings,
    ShareGroupSettings,
    GroupPolicySettings,
)
LISTENER_SETTINGS: Final = (ConnectionSettings, SaslSettings, TlsSettings)
"""Keys of a broker that may also be set for one listener; `listener_settings` gives them."""
_ALL_SETTINGS: Final = (
    TopicSettings,
    BrokerSettings,
    StartupSettings,
    AuthorizerSettings,
    DelegationTokenSettings,
    *LISTENER_SETTINGS,
    *GROUP_SETTINGS,
)


def _resource_keys(*kinds: type) -> Iterable[ConfigDefinition]:
    return (f.definition for kind in kinds for f in fields_of(kind) if not f.is_broker_key)


def _broker_keys() -> Iterable[ConfigDefinition]:
    for kind in _ALL_SETTINGS:
        for field in fields_of(kind):
            if field.is_broker_key:
                yield field.definition
            yield from field.broker_keys


def _by_name(*definitions: Iterable[ConfigDefinition]) -> Definitions:
    listed = sorted((d for part in definitions for d in part), key=lambda each: each.name)
    by_name = {definition.name: definition for definition in listed}
    assert len(by_name) == len(listed), "a key is declared twice"
    return by_name


TOPIC_CONFIGS: Final = _by_name(_resource_keys(TopicSettings), TOPIC_KEYS)
GROUP_CONFIGS: Final = _by_name(_resource_keys(*GROUP_SETTINGS))
CLIENT_METRICS_CONFIGS: Final = _by_name(_resource_keys(ClientMetricsSettings))
BROKER_CONFIGS: Final = _by_name(_broker_keys(), BROKER_KEYS)
_OLDER_TOPIC_CONFIGS: Final = _by_name(OLDER_TOPIC_KEYS)
_OLDER_BROKER_CONFIGS: Final = _by_name(OLDER_BROKER_KEYS)

_LISTENER_KEYS: Final = frozenset(
    field.definition.name for kind in LISTENER_SETTINGS for field in fields_of(kind)
)

# listener.name.<listener>.[<sasl mechanism>.]<key> is the key for one listener.
_OF_ONE_LISTENER: Final = re.compile(
    r"listener\.name\.[^.]+\.(?:[a-z0-9-]+\.(?=sasl\.|connections\.max\.reauth\.))?(?P<key>.+)"
)


def topic_config(name: str) -> ConfigDefinition | None:
    """The definition of a topic's key, or None."""
    return TOPIC_CONFIGS.get(name) or _OLDER_TOPIC_CONFIGS.get(name)


def broker_config(name: str) -> ConfigDefinition | None:
    """The definition of a broker's key, or of one for a single listener, or None. As Kafka 4 does,
    takes `zookeeper.` keys without effect."""
    definition = BROKER_CONFIGS.get(name) or _OLDER_BROKER_CONFIGS.get(name)
    if definition is not None:
        return definition
    if name.startswith("zookeeper."):
        return ConfigDefinition(
            name=name,
            type=ConfigType.STRING,
            default=None,
            documentation="Accepted for compatibility with Kafka, without effect: there is no"
            " ZooKeeper.",
            enforced_by=WITHOUT_EFFECT,
            scope=ConfigScope.READ_ONLY,
        )
    of_listener = _OF_ONE_LISTENER.fullmatch(name)
    definition = BROKER_CONFIGS.get(of_listener["key"]) if of_listener is not None else None
    if definition is None or (definition.has_effect and definition.name not in _LISTENER_KEYS):
        return None
    # What is not set for the listener is that of the broker, not the default.
    return replace(
        definition, name=name, default=None if definition.has_effect else definition.default
    )
