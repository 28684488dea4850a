"""The keys of share groups' members: Kafka's names, defaults and limits."""

import pytest

from odradek.cluster.metadata.config_definitions import ConfigError, ConfigScope
from odradek.cluster.metadata.share_group_configs import (
    SHARE_GROUP_BROKER_CONFIGS,
    SHARE_GROUP_CONFIGS,
)

BROKERS = {definition.name: definition for definition in SHARE_GROUP_BROKER_CONFIGS}


def test_defaults_are_kafkas_but_for_the_interval_between_assignments() -> None:
    assert {name: definition.default for name, definition in BROKERS.items()} == {
        "group.share.assignment.interval.ms": "100",
        "group.share.heartbeat.interval.ms": "5000",
        "group.share.max.assignment.interval.ms": "15000",
        "group.share.max.heartbeat.interval.ms": "15000",
        "group.share.max.session.timeout.ms": "60000",
        "group.share.max.size": "200",
        "group.share.min.assignment.interval.ms": "0",
        "group.share.min.heartbeat.interval.ms": "5000",
        "group.share.min.session.timeout.ms": "45000",
        "group.share.session.timeout.ms": "45000",
    }


def test_coordinators_must_agree_on_all_of_them() -> None:
    assert {definition.scope for definition in SHARE_GROUP_BROKER_CONFIGS} == {ConfigScope.CLUSTER}


def test_a_group_has_at_most_a_thousand_members() -> None:
    assert BROKERS["group.share.max.size"].parse("1000") == 1_000
    with pytest.raises(ConfigError):
        BROKERS["group.share.max.size"].parse("1001")


def test_a_groups_own_keys_default_to_the_brokers() -> None:
    for definition in SHARE_GROUP_CONFIGS:
        [synonym] = definition.synonyms
        assert definition.default == BROKERS[synonym.name].default
