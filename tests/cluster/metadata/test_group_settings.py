"""The settings of groups: their keys, the derived keys of the broker, and their values."""

import pytest

from odradek.cluster.metadata.config_definitions import ConfigError, ConfigScope
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS, GROUP_CONFIGS
from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.group_settings import (
    ASSIGNORS,
    PROTOCOLS,
    ConsumerGroupSettings,
    ShareGroupSettings,
    StreamsGroupSettings,
    duration_ms,
    matches_any,
)
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ConfigChanged
from odradek.cluster.metadata.settings import broker_settings, of_group, share_group_settings
from odradek.coordinator.group.consumer.assignors import ASSIGNORS as MADE

STATIC: dict[str, str] = {}


def image_with(*configs: tuple[int, str, str, str | None]) -> MetadataImage:
    delta = MetadataDelta(MetadataImage.empty())
    for config in configs:
        delta.replay(ConfigChanged(*config))
    return delta.apply(1)


GROUP, BROKER = ConfigResourceType.GROUP, ConfigResourceType.BROKER


def test_a_group_without_configs_has_the_defaults() -> None:
    assert share_group_settings(MetadataImage.empty(), 1, STATIC, "g") == ShareGroupSettings()


def test_a_group_has_its_own_settings_or_the_brokers() -> None:
    image = image_with(
        (BROKER, "", "group.share.record.lock.duration.ms", "20000"),
        (BROKER, "", "group.share.delivery.count.limit", "4"),
        (GROUP, "g", "share.delivery.count.limit", "3"),
        (GROUP, "g", "share.isolation.level", "read_committed"),
        (GROUP, "g", "share.renew.acknowledge.enable", "FALSE"),
        (GROUP, "g", "share.redelivery.delay.ms", "70"),
        (GROUP, "g", "share.redelivery.backoff.factor", "1.5"),
        (GROUP, "g", "errors.deadletterqueue.topic.name", "dlq.g"),
        (GROUP, "g", "errors.deadletterqueue.copy.record.enable", "true"),
    )
    assert share_group_settings(image, 1, STATIC, "g") == ShareGroupSettings(
        lock_duration_ms=20_000,
        delivery_count_limit=3,
        is_read_committed=True,
        may_renew=False,
        redelivery_delay_ms=70,
        redelivery_backoff=1.5,
        dead_letter_topic="dlq.g",
        copies_dead_letters=True,
    )
    assert share_group_settings(image, 1, STATIC, "h") == ShareGroupSettings(
        lock_duration_ms=20_000, delivery_count_limit=4
    )


def test_a_share_group_starts_by_its_auto_offset_reset() -> None:
    image = image_with(
        (GROUP, "early", "share.auto.offset.reset", "earliest"),
        (GROUP, "recent", "share.auto.offset.reset", "by_duration:PT2S"),
    )
    assert share_group_settings(image, 1, STATIC, "early") == ShareGroupSettings(
        auto_offset_reset="earliest"
    )
    assert share_group_settings(image, 1, STATIC, "recent") == ShareGroupSettings(
        auto_offset_reset="by_duration:PT2S"
    )


def test_bounds_apply_to_values_that_were_set_before() -> None:
    image = image_with(
        (GROUP, "g", "share.delivery.count.limit", "9"),
        (BROKER, "", "group.share.max.delivery.count.limit", "6"),
    )
    assert share_group_settings(image, 1, STATIC, "g").delivery_count_limit == 6


def test_group_settings_are_computed_once_for_an_image() -> None:
    image = image_with((GROUP, "g", "share.delivery.count.limit", "3"))
    assert share_group_settings(image, 1, STATIC, "g") is share_group_settings(
        image, 1, STATIC, "g"
    )
    assert share_group_settings(image, 1, STATIC, "x") is share_group_settings(
        image, 1, STATIC, "y"
    )


def test_without_a_delay_records_are_available_at_once() -> None:
    assert ShareGroupSettings().redelivery_ms(3, 7) == 0


def test_the_redelivery_delay_grows_with_each_delivery_up_to_a_day() -> None:
    group_settings = ShareGroupSettings(redelivery_delay_ms=100, redelivery_backoff=2.0)
    assert [group_settings.redelivery_ms(count, 0) for count in (0, 1, 2, 3)] == [0, 100, 200, 400]
    assert group_settings.redelivery_ms(60, 7) == 86_400_007


def test_throttling_begins_at_half_of_the_delivery_limit_but_not_below_two() -> None:
    limits = [
        ShareGroupSettings(delivery_count_limit=limit).throttle_from for limit in (2, 3, 5, 6, 10)
    ]
    assert limits == [2, 2, 3, 3, 5]


@pytest.mark.parametrize("key", [name for name, each in GROUP_CONFIGS.items() if each.synonyms])
def test_a_groups_default_is_that_of_the_brokers_key_and_within_its_bounds(key: str) -> None:
    definition = GROUP_CONFIGS[key]
    [synonym] = definition.synonyms
    assert definition.default == BROKER_CONFIGS[synonym.name].default
    low, high = (
        None if name is None else int(BROKER_CONFIGS[name].default or 0)
        for name in definition.bounds
    )
    default = int(definition.default or 0)
    assert low is None or low <= default
    assert high is None or default <= high


def test_bounds_have_kafkas_names() -> None:
    assert GROUP_CONFIGS["share.delivery.count.limit"].bounds == (
        "group.share.min.delivery.count.limit",
        "group.share.max.delivery.count.limit",
    )
    assert GROUP_CONFIGS["streams.num.standby.replicas"].bounds == (
        None,
        "group.streams.max.standby.replicas",
    )


def test_all_defaults_of_groups_are_cluster_wide() -> None:
    scopes = {
        definition.scope
        for name, definition in BROKER_CONFIGS.items()
        if name.startswith(
            ("group.consumer.", "group.share.", "group.streams.", "group.ephemeral.")
        )
        and definition.has_effect
    }
    assert scopes == {ConfigScope.CLUSTER}


def test_the_configurable_assignors_are_the_implemented_ones() -> None:
    assert set(ASSIGNORS) == set(MADE)


def test_a_share_group_has_at_most_a_thousand_members() -> None:
    assert BROKER_CONFIGS["group.share.max.size"].parse("1000") == 1_000
    with pytest.raises(ConfigError):
        BROKER_CONFIGS["group.share.max.size"].parse("1001")


def test_a_broker_has_the_settings_of_groups_without_their_own() -> None:
    static = {"group.streams.num.standby.replicas": "1", "group.consumer.assignors": ""}
    broker = broker_settings(MetadataImage.empty(), 1, static)
    assert broker.streams == StreamsGroupSettings(num_standby_replicas=1)
    assert broker.consumer == ConsumerGroupSettings()


def test_a_heartbeat_interval_set_for_a_group_is_fixed() -> None:
    defaults = ConsumerGroupSettings()
    own = of_group(defaults, {"consumer.heartbeat.interval.ms": "6000", "other": "x"}, {})
    assert own == ConsumerGroupSettings(heartbeat_interval_ms=6_000, is_interval_fixed=True)
    assert of_group(defaults, {"consumer.session.timeout.ms": "soon"}, {}) is defaults


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
def test_a_pattern_is_a_name_or_a_prefix(name: str, is_matched: bool) -> None:
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
def test_broker_keys_of_groups_are_validated(key: str, good: str, bad: str) -> None:
    BROKER_CONFIGS[key].parse(good)
    with pytest.raises(ConfigError, match=r"[Mm]ust|either"):
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
def test_group_keys_are_validated(key: str, good: str, bad: str) -> None:
    GROUP_CONFIGS[key].parse(good)
    with pytest.raises(ConfigError, match=r"[Mm]ust|either"):
        GROUP_CONFIGS[key].parse(bad)


def test_by_default_groups_stay_and_take_members_of_every_protocol() -> None:
    defaults = {
        name: definition.default
        for name, definition in GROUP_CONFIGS.items()
        if name.startswith("group.")
    }
    assert defaults == {
        "group.ephemeral": "false",
        "group.protocol.allow": ",".join(PROTOCOLS),
        "group.rewind.by.commit.enable": "false",
        "group.ttl.ms": "0",
    }


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
def test_other_texts_are_not_durations(text: str) -> None:
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
