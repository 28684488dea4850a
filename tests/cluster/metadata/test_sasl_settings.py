"""The settings of authentication: of all listeners, of one, and of one mechanism there."""

from collections.abc import Mapping

import pytest

from odradek.cluster.metadata.config_definitions import ConfigError, ConfigSource
from odradek.cluster.metadata.config_layers import ConfigLayer
from odradek.cluster.metadata.config_tables import broker_config
from odradek.cluster.metadata.sasl_settings import SaslSettings, says_who_authenticates
from odradek.cluster.metadata.settings import settings_of_listener

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def settings(
    static: Mapping[str, str], listener: str = "EXTERNAL", mechanism: str = ""
) -> SaslSettings:
    layer = ConfigLayer(ConfigSource.STATIC_BROKER, static)
    return settings_of_listener(SaslSettings, (layer,), listener, mechanism)


def test_defaults_are_those_of_kafka() -> None:
    of_kafka = settings({})
    assert of_kafka.sasl_enabled_mechanisms == ("GSSAPI",)
    assert of_kafka.sasl_server_max_receive_size == 524_288
    assert of_kafka.connections_max_reauth_ms == 0
    assert of_kafka.connection_failed_authentication_delay_ms == 100


def test_the_nearest_value_counts() -> None:
    key = "connections.max.reauth.ms"
    static = {
        key: "1",
        f"listener.name.external.{key}": "2",
        f"listener.name.external.scram-sha-256.{key}": "3",
    }
    found = [
        settings(static, listener, mechanism).connections_max_reauth_ms
        for listener, mechanism in (
            ("INTERNAL", "SCRAM-SHA-256"),
            ("EXTERNAL", ""),
            ("EXTERNAL", "PLAIN"),
            ("EXTERNAL", "SCRAM-SHA-256"),
        )
    ]
    assert found == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sasl.enabled.mechanisms", "PLAIN,NTLM"),
        ("sasl.server.max.receive.size", "0"),
        ("sasl.jaas.config", f'{JAAS} user_alice="secret"'),
        ("listener.name.external.plain.sasl.jaas.config", "secret"),
        ("sasl.oauthbearer.jwks.endpoint.url", "ftp://issuer"),
        ("sasl.server.callback.handler.class", "com.example.Handler"),
    ],
)
def test_values_that_cannot_be_used_are_refused(key: str, value: str) -> None:
    definition = broker_config(key)
    assert definition is not None
    with pytest.raises(ConfigError) as raised:
        definition.parse(value)
    assert "secret" not in str(raised.value)


def test_passwords_are_sensitive() -> None:
    definition = broker_config("listener.name.external.plain.sasl.jaas.config")
    assert definition is not None
    assert definition.is_sensitive
    assert definition.parse(f'{JAAS} user_alice="secret";')


def test_keys_that_decide_with_what_clients_authenticate() -> None:
    for key in (
        "sasl.enabled.mechanisms",
        "listener.name.external.plain.sasl.jaas.config",
        "sasl.oauthbearer.jwks.endpoint.url",
    ):
        assert says_who_authenticates(key)
    assert not says_who_authenticates("listener.name.external.ssl.keystore.location")
