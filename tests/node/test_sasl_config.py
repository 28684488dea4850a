"""Listeners on which nobody could authenticate are found before a node starts."""

import pytest

from odradek.node.config import load
from odradek.node.config_sources import ConfigurationError

CLIENTS = {
    "listeners": "CLIENTS://:9092",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
}
MECHANISMS = "listener.name.clients.sasl.enabled.mechanisms"
PLAIN_USERS = "listener.name.clients.plain.sasl.jaas.config"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured"
    ".OAuthBearerUnsecuredValidatorCallbackHandler"
)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({}, "GSSAPI"),
        ({MECHANISMS: ""}, "nothing"),
        ({MECHANISMS: "PLAIN"}, "PLAIN has no users"),
        ({MECHANISMS: "PLAIN", PLAIN_USERS: f'{LOGIN} username="a" password="b";'}, "no users"),
        ({MECHANISMS: "PLAIN", PLAIN_USERS: f'{LOGIN} user_a="geheim"'}, "semicolon"),
        ({MECHANISMS: "OAUTHBEARER"}, "no keys"),
    ],
)
def test_a_listener_that_would_refuse_everybody(settings: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault) as raised:
        load(environment={}, options={**CLIENTS, **settings})
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {MECHANISMS: "SCRAM-SHA-256,SCRAM-SHA-512"},
        {"sasl.enabled.mechanisms": "SCRAM-SHA-512"},
        {MECHANISMS: "PLAIN", PLAIN_USERS: f'{LOGIN} user_a="b";'},
        {MECHANISMS: "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "https://issuer/keys"},
        {
            MECHANISMS: "OAUTHBEARER",
            "listener.name.clients.oauthbearer.sasl.server.callback.handler.class": UNSECURED,
        },
    ],
)
def test_a_listener_on_which_clients_can_authenticate(settings: dict[str, str]) -> None:
    (listener,) = load(environment={}, options={**CLIENTS, **settings}).listeners
    assert listener.security_protocol == "SASL_PLAINTEXT"
