"""DescribeConfigs: every known key, its effective value, source and synonyms."""

from odradek.cluster.metadata.config_definitions import ConfigSource, ConfigType, config_text
from odradek.cluster.metadata.config_description import (
    describe_broker,
    describe_cluster_default,
    describe_topic,
)
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS, TOPIC_CONFIGS
from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ConfigChanged
from odradek.protocol.messages.configs import DescribeConfigsResourceResult

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


def image_with(*configs: tuple[int, str, str, str]) -> MetadataImage:
    delta = MetadataDelta(MetadataImage.empty())
    for config in configs:
        delta.replay(ConfigChanged(*config))
    return delta.apply(1)


def rows(config: DescribeConfigsResourceResult) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, int(synonym.source)) for synonym in config.synonyms]


def by_name(
    configs: list[DescribeConfigsResourceResult],
) -> dict[str, DescribeConfigsResourceResult]:
    return {config.name: config for config in configs}


def test_a_topics_description_lists_every_key_with_a_value() -> None:
    configs = describe_topic(MetadataImage.empty(), 1, {}, "t")
    assert [config.name for config in configs] == list(TOPIC_CONFIGS)
    for config in configs:
        assert config.value is not None
        assert config.config_source is ConfigSource.DEFAULT
        assert not config.read_only
        assert (config.documentation or "").endswith(".")


def test_a_topics_value_is_shown_with_what_it_overrides() -> None:
    image = image_with((TOPIC, "t", "retention.ms", "5"), (BROKER, "1", "log.retention.ms", "4000"))
    config = by_name(describe_topic(image, 1, {"log.retention.hours": "168"}, "t"))["retention.ms"]
    assert (config.value, config.config_source, config.config_type) == (
        "5",
        ConfigSource.DYNAMIC_TOPIC,
        ConfigType.LONG,
    )
    assert rows(config) == [
        ("retention.ms", "5", 1),
        ("log.retention.ms", "4000", 2),
        ("log.retention.hours", "168", 4),
        ("log.retention.hours", "168", 5),
    ]


def test_a_value_in_hours_is_shown_in_the_keys_own_unit() -> None:
    config = by_name(describe_topic(MetadataImage.empty(), 1, {"log.roll.hours": "2"}, "t"))
    assert config["segment.ms"].value == "7200000"
    assert config["segment.ms"].config_source is ConfigSource.STATIC_BROKER


def test_a_new_topic_is_described_with_its_own_configs() -> None:
    image = image_with((TOPIC, "t", "retention.ms", "5"))
    config = by_name(describe_topic(image, 1, {}, "t", overrides={"segment.ms": "9"}))
    assert config["segment.ms"].config_source is ConfigSource.DYNAMIC_TOPIC
    assert config["retention.ms"].config_source is ConfigSource.DEFAULT


def test_a_brokers_description_lists_every_key_and_which_are_read_only() -> None:
    configs = describe_broker(MetadataImage.empty(), 1, {"node.id": "1"})
    assert [config.name for config in configs] == list(BROKER_CONFIGS)
    read_only = {config.name for config in configs if config.read_only}
    assert {"node.id", "broker.rack"} <= read_only
    dynamic = {"log.retention.ms", "log.retention.hours", "num.partitions", "message.max.bytes"}
    assert not dynamic & read_only
    assert by_name(configs)["node.id"].config_source is ConfigSource.STATIC_BROKER


def test_the_cluster_default_shows_only_what_was_set() -> None:
    image = image_with(
        (BROKER, "", "num.partitions", "4"), (BROKER, "1", "fetch.max.bytes", "2048")
    )
    (config,) = describe_cluster_default(image)
    assert (config.name, config.value) == ("num.partitions", "4")
    assert rows(config) == [("num.partitions", "4", 3)]


def test_an_invalid_value_is_not_described() -> None:
    config = by_name(describe_topic(image_with((TOPIC, "t", "flush.ms", "x")), 1, {}, "t"))
    assert config["flush.ms"].config_source is ConfigSource.DEFAULT


def test_values_are_written_as_kafka_writes_them() -> None:
    assert [config_text(value) for value in (True, False, 5, 0.5, "x", ("a", "b"), (), None)] == [
        "true",
        "false",
        "5",
        "0.5",
        "x",
        "a,b",
        "",
        None,
    ]
