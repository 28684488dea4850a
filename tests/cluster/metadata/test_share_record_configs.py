"""The keys about the records of share groups."""

import pytest

from odradek.cluster.metadata.broker_configs import BROKER_CONFIGS
from odradek.cluster.metadata.config_definitions import ConfigError, ConfigScope
from odradek.cluster.metadata.group_configs import GROUP_CONFIGS
from odradek.cluster.metadata.share_record_configs import (
    SHARE_GROUP_RECORD_CONFIGS,
    SHARE_RECORD_CONFIGS,
    duration_ms,
)


def test_leaders_must_agree_on_all_of_them() -> None:
    assert {definition.scope for definition in SHARE_RECORD_CONFIGS} == {ConfigScope.CLUSTER}


def test_a_groups_default_is_that_of_the_brokers_key_and_within_its_bounds() -> None:
    for definition in SHARE_GROUP_RECORD_CONFIGS:
        for synonym in definition.synonyms:
            kind = definition.name.removeprefix("share.")
            assert synonym.name == f"group.share.{kind}"
            assert definition.default == BROKER_CONFIGS[synonym.name].default
            least, most = (
                BROKER_CONFIGS[f"group.share.{end}.{kind}"].default for end in ("min", "max")
            )
            assert int(least or 0) <= int(definition.default or 0) <= int(most or 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P1D", 86_400_000),
        ("PT1H", 3_600_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt0.25s", 250),
        ("PT0S", 0),
    ],
)
def test_durations_are_read_as_iso_8601_has_them(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "-PT1S", "PT-1S", "P1Y", "1D", "PT1"])
def test_what_is_no_duration_is_none(text: str) -> None:
    assert duration_ms(text) is None


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        (
            "share.auto.offset.reset",
            ["latest", "earliest", "by_duration:PT1H"],
            ["none", "by_duration:", "by_duration:-PT1H", ""],
        ),
        ("share.isolation.level", ["read_committed", "read_uncommitted"], ["serializable"]),
        ("share.redelivery.delay.ms", ["0", "86400000"], ["-1", "86400001"]),
        ("share.redelivery.backoff.factor", ["1", "2.5"], ["0.5", "101"]),
        ("share.renew.acknowledge.enable", ["true", "false"], ["yes"]),
        (
            "errors.deadletterqueue.topic.name",
            ["", "dlq.t"],
            ["__consumer_offsets", "__x", "a b", "."],
        ),
        ("errors.deadletterqueue.copy.record.enable", ["true"], ["1"]),
    ],
)
def test_values_are_checked(key: str, good: list[str], bad: list[str]) -> None:
    definition = GROUP_CONFIGS[key]
    for text in good:
        definition.parse(text)
    for text in bad:
        with pytest.raises(ConfigError):
            definition.parse(text)
