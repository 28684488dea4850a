"""Limits of the broker and of one listener."""

import pytest

from odradek.cluster.metadata.config_definitions import ConfigError
from odradek.cluster.metadata.config_tables import broker_config
from odradek.cluster.metadata.connection_settings import ConnectionSettings
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.settings import listener_settings

STATIC = {
    "max.connections": "100",
    "listener.name.external.max.connections": "10",
    "listener.name.external.max.connection.creation.rate": "5",
}


def test_a_listener_has_its_own_limits_and_the_broker_those_without_a_name() -> None:
    def found(listener: str) -> ConnectionSettings:
        return listener_settings(ConnectionSettings, MetadataImage.empty(), 0, STATIC, listener)

    assert (found("").max_connections, found("EXTERNAL").max_connections) == (100, 10)
    assert found("EXTERNAL").max_connection_creation_rate == 5
    assert found("INTERNAL") == found("")


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("max.connections", "0", "-1"),
        ("max.connection.creation.rate", "10", "fast"),
        ("proxy.protocol.trusted.addresses", "10.0.0.0/8,::1,192.0.2.7", "proxy.example"),
        ("proxy.protocol.enable", "true", "yes"),
    ],
)
def test_values_are_checked(key: str, good: str, bad: str) -> None:
    for name in (key, f"listener.name.external.{key}"):
        definition = broker_config(name)
        assert definition is not None
        definition.parse(good)
        with pytest.raises(ConfigError):
            definition.parse(bad)
