"""Settings of a broker that must fit each other."""

import pytest

from odradek.cluster.metadata.config_constraints import CONSTRAINTS, violated_constraints
from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.cluster.metadata.config_layers import ConfigLayer
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS


def faults(**configs: str) -> list[str]:
    """Of a broker that was started with these, written with `_` for `.`."""
    static = {key.replace("_", "."): value for key, value in configs.items()}
    return violated_constraints((ConfigLayer(ConfigSource.STATIC_BROKER, static),), static)


def test_the_defaults_fit_each_other() -> None:
    assert violated_constraints((), BROKER_CONFIGS.keys()) == []


@pytest.mark.parametrize("relation", CONSTRAINTS)
def test_every_relation_is_between_keys_that_there_are(relation: tuple[str, str, bool]) -> None:
    assert {relation[0], relation[1]} <= BROKER_CONFIGS.keys()


def test_what_groups_begin_with_lies_within_what_they_may_have() -> None:
    assert faults(group_consumer_session_timeout_ms="20000") == [
        "group.consumer.min.session.timeout.ms=45000 is not valid: it must be at most"
        " group.consumer.session.timeout.ms, which is 20000"
    ]
    assert faults(group_share_delivery_count_limit="9", group_share_max_delivery_count_limit="8")
    lower = {"group_consumer_min_session_timeout_ms": "20000"}
    assert faults(group_consumer_session_timeout_ms="20000", **lower) == []


def test_a_member_is_heard_of_more_often_than_it_is_given_up() -> None:
    settings = {
        "group_share_max_heartbeat_interval_ms": "60000",
        "group_share_heartbeat_interval_ms": "45000",
    }
    [fault] = faults(**settings)
    assert "it must be less than group.share.session.timeout.ms, which is 45000" in fault


def test_the_stronger_layer_speaks() -> None:
    key = "group.max.session.timeout.ms"
    low = ConfigLayer(ConfigSource.STATIC_BROKER, {key: "1"})
    high = ConfigLayer(ConfigSource.DYNAMIC_DEFAULT_BROKER, {key: "7000"})
    assert violated_constraints((low,), [key])
    assert violated_constraints((high, low), [key]) == []


def test_what_nobody_changes_is_left_alone() -> None:
    layer = ConfigLayer(ConfigSource.STATIC_BROKER, {"group.max.session.timeout.ms": "1"})
    assert violated_constraints((layer,), ["group.consumer.session.timeout.ms"]) == []
