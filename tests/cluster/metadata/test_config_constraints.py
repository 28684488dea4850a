"""Constraints between the settings of a broker."""

import pytest

from odradek.cluster.metadata.config_constraints import (
    CONSTRAINTS,
    ConfigConstraint,
    cordoned_fault,
    violated_constraints,
)
from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.cluster.metadata.config_layers import ConfigLayer
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS


def faults(**configs: str) -> list[str]:
    """The violated constraints of a broker with this static configuration (`_` for `.`)."""
    static = {key.replace("_", "."): value for key, value in configs.items()}
    return violated_constraints((ConfigLayer(ConfigSource.STATIC_BROKER, static),), static)


def test_the_defaults_violate_no_constraint() -> None:
    assert violated_constraints((), BROKER_CONFIGS.keys()) == []


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_every_constraint_is_between_existing_keys(constraint: ConfigConstraint) -> None:
    assert {constraint.key, constraint.other} <= BROKER_CONFIGS.keys()


def test_the_default_for_groups_lies_within_their_bounds() -> None:
    assert faults(group_consumer_session_timeout_ms="20000") == [
        "group.consumer.session.timeout.ms must be greater than or equal to"
        " group.consumer.min.session.timeout.ms"
    ]
    assert faults(group_share_delivery_count_limit="9", group_share_max_delivery_count_limit="8")
    lower = {"group_consumer_min_session_timeout_ms": "20000"}
    assert faults(group_consumer_session_timeout_ms="20000", **lower) == []


def test_the_heartbeat_interval_is_shorter_than_the_session_timeout() -> None:
    settings = {
        "group_share_max_heartbeat_interval_ms": "60000",
        "group_share_heartbeat_interval_ms": "45000",
    }
    assert faults(**settings) == [
        "group.share.heartbeat.interval.ms must be less than group.share.session.timeout.ms"
    ]


def test_the_layer_of_higher_precedence_counts() -> None:
    key = "group.max.session.timeout.ms"
    low = ConfigLayer(ConfigSource.STATIC_BROKER, {key: "1"})
    high = ConfigLayer(ConfigSource.DYNAMIC_DEFAULT_BROKER, {key: "7000"})
    assert violated_constraints((low,), [key])
    assert violated_constraints((high, low), [key]) == []


def test_constraints_on_other_keys_are_not_checked() -> None:
    layer = ConfigLayer(ConfigSource.STATIC_BROKER, {"group.max.session.timeout.ms": "1"})
    assert violated_constraints((layer,), ["group.consumer.session.timeout.ms"]) == []


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", None),
        ("*", None),
        ("/a, /b", None),
        ("*,/a", "When cordoned.log.dirs is set to *, it must not contain other values"),
        (
            "/a,/c,/d",
            "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. Missing"
            " entries : /c,/d",
        ),
    ],
)
def test_a_broker_has_the_log_directories_that_are_cordoned(value: str, says: str | None) -> None:
    assert cordoned_fault(value, ["/a", "/b"]) == says


def test_of_a_broker_that_has_not_told_its_log_directories_any_may_be_cordoned() -> None:
    assert cordoned_fault("/c", []) is None
