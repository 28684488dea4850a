"""The texts of listeners: what they mean, and the errors."""

from collections.abc import Callable

import pytest

from odradek.cluster.metadata.config_definitions import ConfigError
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS
from odradek.cluster.metadata.listener_addresses import (
    LISTENER_KEYS,
    parse_addresses,
    parse_host_and_port,
    parse_protocol_map,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_protocol_map, "A:PLAINTEXT, b:SSL", {"A": "PLAINTEXT", "B": "SSL"}),
        (parse_addresses, "a://*:1,B://[::1]:2", {"A": ("", 1), "B": ("::1", 2)}),
        (parse_addresses, ":9092", {"PLAINTEXT": ("", 9092)}),
        (parse_host_and_port, "localhost:0", ("localhost", 0)),
    ],
)
def test_texts_are_parsed(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "right"),
    [
        (parse_protocol_map, "A:HTTP", "NAME:PROTOCOL"),
        (parse_addresses, "", "at least one listener"),
        (parse_addresses, ":1,:2", "Two listeners have the name PLAINTEXT"),
        (parse_host_and_port, "9644", "must be host:port"),
        (parse_host_and_port, "localhost:65536", "from 0 to 65535"),
        (parse_host_and_port, "::1:9092", "in brackets"),
    ],
)
def test_errors_say_what_is_valid(parse: Callable[[str], object], text: str, right: str) -> None:
    with pytest.raises(ValueError, match=right):
        parse(text)


def test_the_keys_have_values_that_can_be_listeners() -> None:
    for key in LISTENER_KEYS:
        definition = BROKER_CONFIGS[key]
        assert not definition.parse("")
        with pytest.raises(ConfigError, match=f"Invalid value .* for configuration {key}"):
            definition.parse("A://nowhere" if key.endswith("listeners") else "A:HTTP")
