"""The order of the layers, and the effective value."""

from collections.abc import Mapping

from odradek.cluster.metadata.config_definitions import ConfigSource, ConfigValue
from odradek.cluster.metadata.config_layers import (
    ConfigLayer,
    broker_candidates,
    broker_layers,
    effective_value,
    resource_candidates,
)
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS, TOPIC_CONFIGS
from odradek.cluster.metadata.image import ConfigResource, ConfigResourceType, ConfigsImage

Texts = Mapping[str, str]


def layers(
    *, broker: Texts | None = None, cluster: Texts | None = None, static: Texts | None = None
) -> tuple[ConfigLayer, ...]:
    configs = ConfigsImage(
        {
            ConfigResource(ConfigResourceType.BROKER, "1"): broker or {},
            ConfigResource(ConfigResourceType.BROKER, "2"): {"log.retention.ms": "222"},
            ConfigResource(ConfigResourceType.BROKER, ""): cluster or {},
        }
    )
    return broker_layers(configs, 1, static or {})


def topic_rows(key: str, own: Texts, below: tuple[ConfigLayer, ...]) -> list[tuple[str, str, int]]:
    layer = ConfigLayer(ConfigSource.DYNAMIC_TOPIC, own)
    candidates = resource_candidates(TOPIC_CONFIGS[key], layer, below)
    return [(name, text, int(source)) for name, text, source, _ in candidates]


def topic_value(
    key: str, own: Texts, below: tuple[ConfigLayer, ...]
) -> tuple[ConfigValue | None, ConfigSource]:
    definition = TOPIC_CONFIGS[key]
    layer = ConfigLayer(ConfigSource.DYNAMIC_TOPIC, own)
    return effective_value(definition, resource_candidates(definition, layer, below))


def test_the_topic_comes_before_the_broker_the_cluster_the_file_and_the_default() -> None:
    below = layers(
        broker={"message.max.bytes": "2"},
        cluster={"message.max.bytes": "3"},
        static={"message.max.bytes": "4"},
    )
    assert topic_rows("max.message.bytes", {"max.message.bytes": "1"}, below) == [
        ("max.message.bytes", "1", 1),
        ("message.max.bytes", "2", 2),
        ("message.max.bytes", "3", 3),
        ("message.max.bytes", "4", 4),
        ("message.max.bytes", "1048588", 5),
    ]


def test_configs_of_another_broker_are_ignored() -> None:
    assert topic_value("retention.ms", {}, layers()) == (604_800_000, ConfigSource.DEFAULT)


def test_within_a_layer_the_finer_unit_wins() -> None:
    # As Kafka 4.3.1 answers for retention.ms with log.retention.ms set dynamically.
    below = layers(
        broker={"log.retention.ms": "4000"},
        static={"log.retention.hours": "168", "log.retention.minutes": "9"},
    )
    assert topic_rows("retention.ms", {"retention.ms": "5"}, below) == [
        ("retention.ms", "5", 1),
        ("log.retention.ms", "4000", 2),
        ("log.retention.minutes", "9", 4),
        ("log.retention.hours", "168", 4),
        ("log.retention.hours", "168", 5),
    ]


def test_coarser_units_are_counted_in_milliseconds() -> None:
    assert topic_value("retention.ms", {}, layers(static={"log.retention.minutes": "9"})) == (
        540_000,
        ConfigSource.STATIC_BROKER,
    )
    assert topic_value("segment.ms", {}, layers(static={"log.roll.hours": "2"})) == (
        7_200_000,
        ConfigSource.STATIC_BROKER,
    )


def test_minus_one_means_no_limit_in_any_unit() -> None:
    assert topic_value("retention.ms", {}, layers(static={"log.retention.hours": "-1"})) == (
        -1,
        ConfigSource.STATIC_BROKER,
    )


def test_a_brokers_key_has_its_synonyms_too() -> None:
    definition = BROKER_CONFIGS["log.retention.ms"]
    below = layers(static={"log.retention.hours": "2"})
    assert effective_value(definition, broker_candidates(definition, below)) == (
        7_200_000,
        ConfigSource.STATIC_BROKER,
    )


def test_an_unset_key_without_a_default_has_no_value() -> None:
    definition = BROKER_CONFIGS["broker.rack"]
    assert effective_value(definition, broker_candidates(definition, layers())) == (
        None,
        ConfigSource.DEFAULT,
    )


def test_an_invalid_value_is_skipped() -> None:
    below = layers(cluster={"log.retention.ms": "-9"}, static={"log.retention.ms": "44"})
    assert topic_value("retention.ms", {"retention.ms": "soon"}, below) == (
        44,
        ConfigSource.STATIC_BROKER,
    )
