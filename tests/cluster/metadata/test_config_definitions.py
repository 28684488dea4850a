"""Texts to values, and the sentences for those that are none."""

import pytest

from odradek.cluster.metadata.config_definitions import (
    ConfigDefinition,
    ConfigError,
    ConfigType,
    ConfigValue,
    Validator,
    at_least,
    between,
    list_of,
    number_where,
    one_of,
)


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
def test_a_text_that_is_no_value_of_the_type_is_refused(kind: ConfigType, text: str) -> None:
    assert "a.key" in complaint(kind, text)


def test_a_complaint_names_the_key_the_value_and_what_would_be_right() -> None:
    assert (
        complaint(ConfigType.INT, "7x", at_least(1))
        == "a.key='7x' is not valid: it must be a whole number, 1 or more"
    )
    assert (
        complaint(ConfigType.DOUBLE, "2", between(0, 1))
        == "a.key='2' is not valid: it must be a number, from 0 to 1"
    )
    assert (
        complaint(ConfigType.STRING, "c", one_of("a", "b"))
        == "a.key='c' is not valid: it must be one of: a, b"
    )
    assert (
        complaint(ConfigType.LIST, "a,c", list_of("a", "b"))
        == "a.key='a,c' is not valid: it must be a comma-separated list of: a, b"
    )
    assert complaint(ConfigType.BOOLEAN, "") == "a.key='' is not valid: it must be true or false"


def test_a_complaint_does_not_give_a_secret_away() -> None:
    sensitive = a_key(ConfigType.PASSWORD, one_of("good"))
    with pytest.raises(ConfigError) as caught:
        sensitive.parse("hunter2")
    assert "hunter2" not in str(caught.value)


def test_limits_include_their_ends() -> None:
    validator = between(-1, 1)
    assert [validator.is_valid(value) for value in (-2, -1, 0, 1, 2)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert [at_least(3).is_valid(value) for value in (2, 3)] == [False, True]


def test_a_limit_on_numbers_accepts_nothing_else() -> None:
    validator = number_where("anything", lambda _value: True)
    assert not validator.is_valid("1")
    assert not validator.is_valid(("1",))
