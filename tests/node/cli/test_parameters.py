"""Types of options and arguments."""

from datetime import UTC, datetime, timedelta

import click
import pytest

from odradek.node.cli.parameters import (
    duration,
    moment,
    moment_text,
    pair,
    principal,
    rate,
    size,
    topic_selection,
)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("15m", 900_000),
        ("1.5h", 5_400_000),
        ("1d12h", 129_600_000),
    ],
)
def test_a_duration_is_a_sum_of_units(text: str, milliseconds: int) -> None:
    assert duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "5", "m", "5x", "5m!", "-5m", "9" * 400 + "w"])
def test_an_invalid_duration_is_named_in_the_error(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration such as"):
        duration(text)


def test_a_moment_is_epoch_milliseconds_or_iso_8601() -> None:
    assert moment("1700000000123") == 1_700_000_000_123
    assert moment("2023-11-14T22:13:20+00:00") == 1_700_000_000_000
    assert moment("2023-11-14T22:13:20.500Z") == 1_700_000_000_500


def test_a_duration_as_a_moment_is_before_now() -> None:
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    assert moment("1h") == pytest.approx(hour_ago.timestamp() * 1000, abs=5_000)


def test_an_invalid_moment_is_an_error_with_examples() -> None:
    with pytest.raises(click.BadParameter, match="'yesterday' is not a time: give 2026-"):
        moment("yesterday")


@pytest.mark.parametrize(
    ("text", "number"),
    [("1024", 1024), ("64KiB", 65536), ("1MB", 1_000_000), ("2 GiB", 2 << 30), ("7b", 7)],
)
def test_a_size_has_binary_or_decimal_units(text: str, number: int) -> None:
    assert size(text) == number


def test_an_invalid_size_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="is not a size"):
        size("1 parsec")


def test_a_pair_keeps_further_equals_signs_and_empty_values() -> None:
    assert pair("a=b=c") == ("a", "b=c")
    assert pair("a=") == ("a", "")
    with pytest.raises(click.BadParameter, match="is not KEY=VALUE"):
        pair("=a")


def test_a_selection_without_partitions_has_all_of_the_topic() -> None:
    assert topic_selection("orders").has("orders", 99)
    assert not topic_selection("orders").has("others", 0)


def test_a_selection_with_partitions_has_only_those() -> None:
    selection = topic_selection("orders:0,2")
    assert [number for number in range(4) if selection.has("orders", number)] == [0, 2]


@pytest.mark.parametrize("numbers", ["first", "-1", "", "0,", "0, 1", "9999999999"])
def test_a_partition_is_a_number_from_zero_on(numbers: str) -> None:
    """-1 would be all partitions on the wire."""
    with pytest.raises(click.BadParameter, match="is not TOPIC or TOPIC:0,1,2"):
        topic_selection(f"orders:{numbers}")


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, None),
        (2**63 - 1, str(2**63 - 1)),
    ],
)
def test_a_timestamp_is_shown_to_the_millisecond_and_never_fails(
    timestamp_ms: int, text: str | None
) -> None:
    assert moment_text(timestamp_ms) == text


@pytest.mark.parametrize(
    ("given", "meant"), [("bob", "User:bob"), ("User:bob", "User:bob"), ("*", "User:*")]
)
def test_a_principal_is_a_user_unless_it_says_otherwise(given: str, meant: str) -> None:
    assert principal(given) == meant


@pytest.mark.parametrize("text", ["", "User:", ":bob"])
def test_a_principal_has_a_type_and_a_name(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a principal"):
        principal(text)


def test_rates_are_sizes_with_or_without_a_second() -> None:
    assert rate("50M") == rate("50MB/s") == 50_000_000
    assert rate("1KiB/s") == 1024
    with pytest.raises(click.BadParameter):
        rate("0k")
