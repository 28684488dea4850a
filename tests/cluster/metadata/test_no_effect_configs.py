"""Kafka's keys without effect: which they are, their values, and what is refused."""

import re

import pytest

from odradek.cluster.metadata.authorizer_settings import ACCESS_CONTROL_KEYS
from odradek.cluster.metadata.config_definitions import ConfigDefinition, ConfigError, ConfigScope
from odradek.cluster.metadata.config_schema import fields_of
from odradek.cluster.metadata.config_tables import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    broker_config,
    topic_config,
)
from odradek.cluster.metadata.no_effect_configs import (
    BROKER_KEYS,
    OLDER_BROKER_KEYS,
    OLDER_TOPIC_KEYS,
    TOPIC_KEYS,
)
from odradek.cluster.metadata.node_settings import StartupSettings

OURS = re.compile(
    r"group\.(ephemeral|lag)\.|transaction\.watchdog\.|proxy\.protocol\.|internal\.topics\."
    r"|metrics\.series\."
)
THROTTLES = (
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
DEAD_LETTERS = (
    "errors.deadletterqueue.auto.create.topics.enable",
    "errors.deadletterqueue.topic.name.prefix",
)
ALL = (*TOPIC_KEYS, *BROKER_KEYS, *OLDER_TOPIC_KEYS, *OLDER_BROKER_KEYS)


def test_together_with_the_enforced_keys_they_are_all_of_kafkas_keys() -> None:
    # Kafka 4.3.1 has 340 keys of a broker that are not internal. The other direction, and the keys
    # that have an effect, are in test_broker_settings.py and test_topic_settings.py.
    ours = {"durability", "workers", *THROTTLES, *DEAD_LETTERS}
    # Kafka reads them, but they are keys of its authorizer and not of the broker.
    ours |= ACCESS_CONTROL_KEYS - {"authorizer.class.name"} | {"audit.log.path"}
    ours |= {name for name in BROKER_CONFIGS if OURS.match(name)}
    ours |= {field.definition.name for field in fields_of(StartupSettings)}
    assert len(BROKER_CONFIGS.keys() - ours) == 340
    assert len(BROKER_KEYS) == 171
    assert len(TOPIC_KEYS) == 5
    assert all(not BROKER_CONFIGS[each.name].has_effect for each in BROKER_KEYS)
    assert all(not TOPIC_CONFIGS[each.name].has_effect for each in TOPIC_KEYS)


@pytest.mark.parametrize("definition", ALL, ids=lambda definition: definition.name)
def test_keys_without_effect_are_documented_and_accept_their_defaults(
    definition: ConfigDefinition,
) -> None:
    assert "without effect" in definition.documentation
    if definition.default is not None:
        definition.parse(definition.default)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("num.io.threads", "1", "0"),
        ("log.cleaner.threads", "0", "-1"),
        ("background.threads", "12", "many"),
        ("process.roles", "broker,controller", "zookeeper"),
        ("inter.broker.protocol.version", "3.7-IV4", "newest"),
        ("log.message.format.version", "0.11.0.2", "v2"),
        ("sasl.oauthbearer.assertion.algorithm", "ES256", "HS256"),
        ("sasl.login.refresh.buffer.seconds", "300", "40000"),
        ("sasl.oauthbearer.assertion.claim.exp.seconds", "86400", "86401"),
        ("zookeeper.connect", "zk:2181", None),
    ],
)
def test_values_are_checked_as_in_kafka(key: str, good: str, bad: str | None) -> None:
    definition = broker_config(key)
    assert definition is not None
    definition.parse(good)
    if bad is not None:
        with pytest.raises(ConfigError, match=r"[Mm]ust be|Not a number"):
            definition.parse(bad)


@pytest.mark.parametrize(
    ("key", "good", "bad", "reason"),
    [
        ("log.cleaner.enable", "true", "false", "cleanup.policy"),
        ("remote.log.storage.system.enable", "false", "true", "tiered storage"),
        ("transaction.two.phase.commit.enable", "false", "true", "two-phase"),
        ("group.share.assignors", "simple", "mine", "simple"),
        ("config.providers", "", "file", "own configuration only"),
    ],
)
def test_a_value_that_needs_a_missing_feature_is_refused_with_the_reason(
    key: str, good: str, bad: str, reason: str
) -> None:
    definition = BROKER_CONFIGS[key]
    definition.parse(good)
    with pytest.raises(ConfigError, match=f"Invalid value .* for configuration {key}: .*{reason}"):
        definition.parse(bad)


def test_remote_storage_may_be_disabled_but_not_enabled() -> None:
    definition = TOPIC_CONFIGS["remote.storage.enable"]
    assert definition.parse("false") is False
    with pytest.raises(ConfigError, match="Tiered Storage functionality is disabled in the broker"):
        definition.parse("true")


def test_the_error_of_a_replaced_key_names_its_successors() -> None:
    definition = topic_config("message.timestamp.difference.max.ms")
    assert definition is not None
    definition.parse("9223372036854775807")
    with pytest.raises(ConfigError, match=r"message\.timestamp\.before\.max\.ms"):
        definition.parse("1000")


def test_secrets_are_not_shown() -> None:
    definition = BROKER_CONFIGS["ssl.keystore.password"]
    assert definition.is_sensitive
    assert definition.scope is ConfigScope.PER_BROKER
