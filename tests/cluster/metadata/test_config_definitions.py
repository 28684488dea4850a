"""Texts to values, and the errors with Kafka's texts."""

from contextlib import suppress

import pytest

from odradek.cluster.metadata.config_definitions import (
    ConfigDefinition,
    ConfigError,
    ConfigType,
    ConfigValue,
    Validator,
    at_least,
    between,
    one_of,
    satisfying,
)
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS


def parsed(kind: ConfigType, text: str, validator: Validator | None = None) -> ConfigValue:
    return a_key(kind, validator).parse(text)


def a_key(kind: ConfigType, validator: Validator | None = None) -> ConfigDefinition:
    return ConfigDefinition(
        name="a.key",
        type=kind,
        default=None,
        documentation="A key.",
        enforced_by="x",
        validator=validator,
    )


def complaint(kind: ConfigType, text: str, validator: Validator | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(kind, text, validator)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ConfigType.BOOLEAN, "true", True),
        (ConfigType.BOOLEAN, " False ", False),
        (ConfigType.STRING, " a b ", "a b"),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.INT, "+7", 7),
        (ConfigType.SHORT, "32767", 32767),
        (ConfigType.LONG, "9223372036854775807", 2**63 - 1),
        (ConfigType.DOUBLE, "1e3", 1000.0),
        (ConfigType.LIST, "", ()),
        (ConfigType.LIST, "a, b,c", ("a", "b", "c")),
        (ConfigType.LIST, "b,a,b", ("b", "a")),
        (ConfigType.PASSWORD, "secret", "secret"),
    ],
)
def test_a_text_becomes_a_value_of_its_type(
    kind: ConfigType, text: str, value: ConfigValue
) -> None:
    result = parsed(kind, text)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.INT, "2147483648"),
        (ConfigType.INT, "1.0"),
        (ConfigType.INT, ""),
        (ConfigType.INT, "9" * 5000),
        (ConfigType.SHORT, "32768"),
        (ConfigType.LONG, "9223372036854775808"),
        (ConfigType.LONG, "1_0"),
        (ConfigType.LONG, "0x10"),
        (ConfigType.DOUBLE, "1_0"),
        (ConfigType.DOUBLE, "one"),
        (ConfigType.LIST, "a,,b"),
        (ConfigType.LIST, ","),
    ],
)
def test_a_text_that_is_not_of_the_type_is_refused(kind: ConfigType, text: str) -> None:
    assert "a.key" in complaint(kind, text)


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("cleanup.policy", "delete,foo", "foo: String must be one of: compact, delete"),
        ("compression.gzip.level", "0", "0: Value must be between 1 and 9 or equal to -1"),
        ("compression.lz4.level", "18", "18: Value must be no more than 17"),
        (
            "compression.type",
            "",
            ": String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            "follower.replication.throttled.replicas",
            "0:1,*",
            "[0:1, *]: follower.replication.throttled.replicas must be the literal '*' or a list of"
            " replicas in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],"
            "...",
        ),
        ("max.message.bytes", "-1", "-1: Value must be at least 0"),
        ("max.message.bytes", "2147483648", "2147483648: Not a number of type INT"),
        ("max.message.bytes", " ", " : Not a number of type INT"),
        ("message.timestamp.type", "foo", "foo: String must be one of: CreateTime, LogAppendTime"),
        ("min.cleanable.dirty.ratio", "2", "2.0: Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "nan: Not a number of type DOUBLE"),
        ("preallocate", "1", "1: Expected value to be either true or false"),
        ("retention.ms", "1.5", "1.5: Not a number of type LONG"),
        ("segment.bytes", "10", "10: Value must be at least 1048576"),
        (
            "remote.storage.enable",
            "true",
            "true: Tiered Storage functionality is disabled in the broker. Topic cannot be"
            " configured with remote log storage.",
        ),
        (
            "share.auto.offset.reset",
            "by_duration:x",
            "by_duration:x: Invalid value `by_duration:x` for configuration"
            " share.auto.offset.reset. The value must be either 'earliest', 'latest' or of the"
            " format 'by_duration:<PnDTnHnMn.nS>'.",
        ),
        ("share.delivery.count.limit", "1", "1: Value must be at least 2"),
        (
            "share.isolation.level",
            "x",
            "x: String must be one of: read_committed, read_uncommitted",
        ),
        ("ssl.client.auth", "x", "x: String must be one of: required, requested, none"),
        ("process.roles", "foo", "foo: String must be one of: broker, controller"),
    ],
)
def test_errors_have_the_texts_of_kafka(key: str, text: str, expected: str) -> None:
    """Each text is the answer of a Kafka 4.3.1, but for remote.storage.enable: there Kafka says the
    reason only."""
    definition = {**TOPIC_CONFIGS, **GROUP_CONFIGS, **BROKER_CONFIGS}[key]
    shown, _, reason = expected.partition(": ") if expected[0] != ":" else ("", "", expected[2:])
    with pytest.raises(ConfigError) as caught:
        definition.parse(text)
    assert str(caught.value) == f"Invalid value {shown} for configuration {key}: {reason}"


def test_an_empty_item_of_a_list_has_an_error_of_its_own() -> None:
    assert (
        complaint(ConfigType.LIST, "delete,,compact")
        == "Configuration 'a.key' values must not be empty."
    )


def test_no_error_shows_a_secret() -> None:
    for definition in BROKER_CONFIGS.values():
        if definition.is_sensitive:
            for secret in ("hush", "hush,,", "-17"):
                with suppress(ConfigError):
                    definition.parse(secret)
                    continue
                with pytest.raises(ConfigError) as refused:
                    definition.parse(secret)
                assert secret not in str(refused.value)


def test_limits_include_their_ends() -> None:
    assert [parsed(ConfigType.INT, text, between(-1, 1)) for text in ("-1", "0", "1")] == [-1, 0, 1]
    for text in ("-2", "2"):
        complaint(ConfigType.INT, text, between(-1, 1))
    assert parsed(ConfigType.INT, "3", at_least(3)) == 3
    complaint(ConfigType.INT, "2", at_least(3))


def test_a_reason_of_our_own_has_the_form_of_kafkas() -> None:
    assert (
        complaint(ConfigType.STRING, "b", satisfying("Must be a", lambda value: value == "a"))
        == "Invalid value b for configuration a.key: Must be a"
    )
    assert complaint(ConfigType.STRING, "c", one_of("a", "b")).endswith("one of: a, b")


def test_the_error_of_a_secret_key_does_not_show_its_value() -> None:
    def refuse(name: str, value: ConfigValue) -> None:
        raise ConfigError(f"{name} cannot be {value}")

    definition = ConfigDefinition(
        name="k",
        type=ConfigType.PASSWORD,
        default=None,
        documentation="",
        enforced_by="",
        validator=refuse,
    )
    with pytest.raises(ConfigError) as refused:
        definition.parse("hush")
    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None
