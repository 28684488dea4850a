"""Typed settings: all layers are applied, and the values are cached until configs change."""

import random

import pytest

from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.cluster.metadata.config_layers import (
    ConfigLayer,
    broker_layers,
    effective_value,
    resource_candidates,
)
from odradek.cluster.metadata.config_schema import fields_of
from odradek.cluster.metadata.config_tables import TOPIC_CONFIGS
from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ClusterCreated, ConfigChanged
from odradek.cluster.metadata.settings import broker_settings, static_config_error, topic_settings
from odradek.cluster.metadata.topic_settings import TopicSettings

STATIC = {"num.partitions": "3", "log.segment.bytes": "2097152"}


def image_with(*configs: tuple[int, str, str, str | None]) -> MetadataImage:
    return changed(MetadataImage.empty(), *configs)


def changed(image: MetadataImage, *configs: tuple[int, str, str, str | None]) -> MetadataImage:
    delta = MetadataDelta(image)
    for config in configs:
        delta.replay(ConfigChanged(*config))
    return delta.apply(image.offset + 1)


TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


def test_settings_are_typed() -> None:
    settings = topic_settings(MetadataImage.empty(), 1, {}, "t")
    assert settings.cleanup_policy == ("delete",)
    assert settings.retention_ms == 604_800_000
    assert settings.min_cleanable_dirty_ratio == 0.5
    assert settings.preallocate is False


def test_a_topics_config_overrides_the_brokers() -> None:
    image = image_with(
        (TOPIC, "t", "retention.ms", "5"),
        (BROKER, "1", "log.retention.ms", "6"),
        (BROKER, "", "message.max.bytes", "7"),
    )
    settings = topic_settings(image, 1, STATIC, "t")
    assert (settings.retention_ms, settings.max_message_bytes) == (5, 7)
    assert settings.segment_bytes == 2_097_152
    assert topic_settings(image, 1, STATIC, "other").retention_ms == 6
    assert topic_settings(image, 2, STATIC, "other").retention_ms == 604_800_000


@pytest.mark.parametrize("seed", range(20))
def test_topic_settings_equal_the_effective_values_of_the_layers(seed: int) -> None:
    chance = random.Random(seed)
    samples = {
        "LONG": "4",
        "INT": "1048577",
        "DOUBLE": "0.25",
        "BOOLEAN": "true",
        "LIST": "compact",
    }
    configs = []
    for definition in TOPIC_CONFIGS.values():
        value = samples.get(definition.type.name)
        is_special = definition.name.endswith((".level", ".throttled.replicas"))
        if value is None or is_special or not definition.has_effect:
            continue
        if chance.random() < 0.4:
            configs.append((TOPIC, "t", definition.name, value))
        if not definition.synonyms:
            continue
        if chance.random() < 0.4 and definition.synonyms[0].name != "min.insync.replicas":
            configs.append((BROKER, chance.choice(["1", ""]), definition.synonyms[0].name, value))
    image = image_with(*configs)
    settings = topic_settings(image, 1, STATIC, "t")
    own = ConfigLayer(ConfigSource.DYNAMIC_TOPIC, image.configs.of(TOPIC, "t"))
    layers = broker_layers(image.configs, 1, STATIC)
    for field in fields_of(TopicSettings):
        candidates = resource_candidates(field.definition, own, layers)
        expectation, _ = effective_value(field.definition, candidates)
        assert getattr(settings, field.name) == expectation, (seed, field.name)


def test_topics_without_configs_share_one_object() -> None:
    image = image_with((TOPIC, "t", "retention.ms", "5"))
    assert topic_settings(image, 1, STATIC, "a") is topic_settings(image, 1, STATIC, "b")
    assert topic_settings(image, 1, STATIC, "t") is topic_settings(image, 1, STATIC, "t")


def test_settings_are_computed_anew_only_when_configs_change() -> None:
    image = image_with((TOPIC, "t", "retention.ms", "5"))
    before = topic_settings(image, 1, STATIC, "t")
    broker = broker_settings(image, 1, STATIC)
    delta = MetadataDelta(image)
    delta.replay(ClusterCreated("c"))
    same_configs = delta.apply(9)
    assert topic_settings(same_configs, 1, STATIC, "t") is before
    assert broker_settings(same_configs, 1, STATIC) is broker
    other = changed(image, (TOPIC, "t", "retention.ms", "6"))
    assert topic_settings(other, 1, STATIC, "t").retention_ms == 6
    assert topic_settings(image, 1, STATIC, "t").retention_ms == 5


def test_broker_settings_are_kept_when_only_topic_configs_change() -> None:
    before = image_with((BROKER, "", "log.retention.ms", "1"))
    mine, others = broker_settings(before, 1, STATIC), topic_settings(before, 1, STATIC, "t2")
    after = changed(before, (TOPIC, "t1", "retention.ms", "5"))
    assert broker_settings(after, 1, STATIC) is mine
    assert topic_settings(after, 1, STATIC, "t2") is others
    assert topic_settings(after, 1, STATIC, "t1").retention_ms == 5
    for name in ("", "1"):
        last = changed(after, (BROKER, name, "num.partitions", "7"), (TOPIC, "t1", "x", "5"))
        assert broker_settings(last, 1, STATIC).num_partitions == 7
        assert broker_settings(after, 1, STATIC) is mine
    assert topic_settings(last, 1, STATIC, "t2") is not others


def test_settings_are_cached_for_each_static_configuration() -> None:
    image = MetadataImage.empty()
    assert broker_settings(image, 1, {"num.partitions": "3"}).num_partitions == 3
    assert broker_settings(image, 1, {"num.partitions": "4"}).num_partitions == 4


def test_broker_settings_apply_all_layers() -> None:
    image = image_with(
        (BROKER, "1", "fetch.max.bytes", "2048"), (BROKER, "", "num.partitions", "9")
    )
    settings = broker_settings(image, 1, {**STATIC, "broker.rack": "a"})
    assert settings.fetch_max_bytes == 2048
    assert settings.num_partitions == 9
    assert settings.broker_rack == "a"
    assert settings.listeners is None
    assert broker_settings(image, 2, STATIC).fetch_max_bytes == 57_671_680


def test_unknown_keys_and_invalid_values_in_the_log_are_ignored() -> None:
    image = image_with((TOPIC, "t", "retention.ms", "soon"), (TOPIC, "t", "from.the.future", "1"))
    assert topic_settings(image, 1, {}, "t").retention_ms == 604_800_000


def test_errors_in_a_brokers_static_configuration() -> None:
    assert (
        static_config_error("num.partitions", "0")
        == "Invalid value 0 for configuration num.partitions: Value must be at least 1"
    )
    assert static_config_error("num.partition", "3") == "Unknown broker config name: num.partition"
    for name, text in STATIC.items():
        assert static_config_error(name, text) is None
    error = static_config_error("cordoned.log.dirs", "*")
    assert error is not None
    assert "while the broker runs" in error
