"""The keys that hold for groups of every kind: what they take."""

import pytest

from odradek.cluster.metadata.broker_configs import BROKER_CONFIGS
from odradek.cluster.metadata.config_definitions import ConfigError, ConfigScope
from odradek.cluster.metadata.group_configs import GROUP_CONFIGS
from odradek.cluster.metadata.group_policy_configs import (
    POLICY_BROKER_CONFIGS,
    POLICY_GROUP_CONFIGS,
    PROTOCOLS,
    matches_any,
)


@pytest.mark.parametrize(
    ("name", "is_matched"),
    [
        ("console-consumer-1", True),
        ("console-consumer-", True),
        ("console-consumer", False),
        ("ci", True),
        ("ci-2", False),
        ("my-ci", False),
    ],
)
def test_a_pattern_is_a_name_or_the_beginning_of_names(name: str, is_matched: bool) -> None:
    assert matches_any(name, ("console-consumer-*", "ci")) is is_matched


def test_a_star_alone_stands_for_every_name() -> None:
    assert matches_any("g", ("*",))
    assert not matches_any("g", ())


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("group.ephemeral.patterns", "a,b-*", "a*b"),
        ("group.ephemeral.ttl.ms", "0", "-1"),
    ],
)
def test_brokers_keys_take_what_can_be_enforced(key: str, good: str, bad: str) -> None:
    BROKER_CONFIGS[key].parse(good)
    with pytest.raises(ConfigError, match="must be"):
        BROKER_CONFIGS[key].parse(bad)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("group.ephemeral", "true", "maybe"),
        ("group.rewind.by.commit.enable", "true", "yes"),
        ("group.ttl.ms", "60000", "-1"),
        ("group.protocol.allow", "consumer,share", "consumer,smoke"),
        ("group.protocol.allow", "streams", ""),
    ],
)
def test_groups_keys_take_what_can_be_enforced(key: str, good: str, bad: str) -> None:
    GROUP_CONFIGS[key].parse(good)
    with pytest.raises(ConfigError, match="must be"):
        GROUP_CONFIGS[key].parse(bad)


def test_by_default_groups_stay_and_take_members_of_every_protocol() -> None:
    defaults = {name: definition.default for name, definition in POLICY_GROUP_CONFIGS.items()}
    assert defaults == {
        "group.ephemeral": "false",
        "group.protocol.allow": ",".join(PROTOCOLS),
        "group.rewind.by.commit.enable": "false",
        "group.ttl.ms": "0",
    }


def test_all_brokers_must_agree_on_what_is_ephemeral() -> None:
    assert {definition.scope for definition in POLICY_BROKER_CONFIGS} == {ConfigScope.CLUSTER}
