"""Whether clients can authenticate on the listeners of a node's configuration.

A listener with SASL and no mechanism that is served, or with a mechanism that lacks its users or
keys, would refuse everybody: the node does not start, and a running one does not open it. Called by
config.py and router/client_listeners.py.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.cluster.metadata.config_layers import ConfigLayer
from odradek.cluster.metadata.sasl_settings import (
    SERVED_MECHANISMS,
    UNSECURED_TOKENS,
    SaslSettings,
)
from odradek.cluster.metadata.settings import listener_key, settings_of_listener
from odradek.cluster.security.jaas import USER_PREFIX, parse_jaas
from odradek.cluster.security.oauthbearer_server import OAUTHBEARER
from odradek.cluster.security.plain_server import PLAIN


class ConfiguredListener(Protocol):
    """A listener of the configuration."""

    @property
    def name(self) -> str: ...
    @property
    def security_protocol(self) -> str: ...


def sasl_errors(listeners: Iterable[ConfiguredListener], static: Mapping[str, str]) -> list[str]:
    """One sentence for each listener and mechanism with which nobody could authenticate."""
    layers = (ConfigLayer(ConfigSource.STATIC_BROKER, static),)
    return [error for listener in listeners for error in sasl_errors_of(listener, layers)]


def sasl_errors_of(listener: ConfiguredListener, layers: tuple[ConfigLayer, ...]) -> Iterator[str]:
    """The same for one listener and these layers of a broker's configuration."""
    if listener.security_protocol.startswith("SASL_"):
        yield from _errors(listener.name, layers)


def _errors(listener: str, layers: tuple[ConfigLayer, ...]) -> Iterator[str]:
    enabled = settings_of_listener(SaslSettings, layers, listener).sasl_enabled_mechanisms
    unserved = [name for name in enabled if name not in SERVED_MECHANISMS]
    if unserved or not enabled:
        yield (
            f"listener {listener}: sasl.enabled.mechanisms has {', '.join(unserved) or 'nothing'},"
            f" but this release serves {', '.join(SERVED_MECHANISMS)}. Set"
            f" sasl.enabled.mechanisms or {listener_key(listener, 'sasl.enabled.mechanisms')}."
        )
    if PLAIN in enabled:
        text = settings_of_listener(SaslSettings, layers, listener, PLAIN).sasl_jaas_config
        if text is None or not parse_jaas(text).users:
            yield (
                f"listener {listener}: PLAIN has no users. Set"
                f" {listener_key(listener, 'plain.sasl.jaas.config')} to"
                " org.apache.kafka.common.security.plain.PlainLoginModule required"
                f' {USER_PREFIX}<name>="<password>";'
            )
    if OAUTHBEARER in enabled:
        settings = settings_of_listener(SaslSettings, layers, listener, OAUTHBEARER)
        is_unsecured = settings.sasl_server_callback_handler_class == UNSECURED_TOKENS
        if not is_unsecured and settings.sasl_oauthbearer_jwks_endpoint_url is None:
            yield (
                f"listener {listener}: OAUTHBEARER has no keys to verify access tokens with. Set"
                " sasl.oauthbearer.jwks.endpoint.url."
            )
