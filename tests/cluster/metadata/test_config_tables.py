"""The tables of keys, and the keys that are accepted but not listed."""

import pytest

from odradek.cluster.metadata.config_definitions import ConfigScope
from odradek.cluster.metadata.config_tables import (
    BROKER_CONFIGS,
    CLIENT_METRICS_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    broker_config,
    topic_config,
)


@pytest.mark.parametrize(
    "table", [TOPIC_CONFIGS, GROUP_CONFIGS, BROKER_CONFIGS, CLIENT_METRICS_CONFIGS]
)
def test_keys_are_listed_by_name(table: dict[str, object]) -> None:
    assert list(table) == sorted(table)


def test_keys_of_older_releases_are_accepted_but_not_listed() -> None:
    assert "message.format.version" not in TOPIC_CONFIGS
    assert topic_config("message.format.version") is not None
    assert broker_config("inter.broker.protocol.version") is not None
    assert topic_config("inter.broker.protocol.version") is None


def test_a_key_of_one_listener_is_that_of_the_broker() -> None:
    for key, has_effect in (
        ("listener.name.internal.sasl.enabled.mechanisms", True),
        ("listener.name.replication-9091.scram-sha-512.sasl.jaas.config", True),
        ("listener.name.replication-9091.plain.connections.max.reauth.ms", True),
        ("listener.name.internal.ssl.keystore.location", True),
        ("listener.name.replication-9091.gssapi.sasl.kerberos.service.name", False),
    ):
        definition = broker_config(key)
        assert definition is not None
        assert (definition.name, definition.has_effect) == (key, has_effect)
        assert definition.scope is ConfigScope.PER_BROKER
    assert broker_config("listener.name.internal.num.partitions") is None
    assert broker_config("listener.name.internal.nonsense") is None


def test_zookeeper_keys_are_accepted_without_effect() -> None:
    definition = broker_config("zookeeper.connect")
    assert definition is not None
    assert not definition.has_effect
