"""Types of options and arguments: times, durations, sizes, pairs, principals, topic partitions.

Each is a function that click takes as a type; its error names the value and the expected format.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from time import time

import click

DURATION_UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
SIZE_UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "kib": 1 << 10,
    "m": 10**6,
    "mb": 10**6,
    "mib": 1 << 20,
    "g": 10**9,
    "gb": 10**9,
    "gib": 1 << 30,
}


def duration(value: str) -> int:
    """`1500ms`, `90s`, `15m`, `2h`, `1d12h` -> milliseconds."""
    duration_ms = parse_duration(value)
    if duration_ms is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 90s, 15m, 2h or 1d12h")
    return duration_ms


def moment(value: str) -> int:
    """A point in time -> milliseconds since the epoch.

    ISO 8601 (local time by default), epoch milliseconds, or a duration before now.
    """
    if value.isdecimal() and int(value) < 2**63:
        return int(value)
    duration_ms = parse_duration(value)
    if duration_ms is not None:
        return int(time() * 1000) - duration_ms
    try:
        return int(datetime.fromisoformat(value).timestamp() * 1000)
    except ValueError as error:
        raise click.BadParameter(
            f"{value!r} is not a time: give 2026-01-31T12:00:00, epoch milliseconds, "
            "or a duration such as 15m for that long ago"
        ) from error


def size(value: str) -> int:
    """`1024`, `64KiB`, `1MB` -> bytes."""
    match = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", value.strip())
    if match is None or match[2].lower() not in SIZE_UNITS:
        raise click.BadParameter(f"{value!r} is not a size such as 1024, 64KiB or 1MB")
    return int(match[1]) * SIZE_UNITS[match[2].lower()]


def rate(value: str) -> int:
    """`50M`, `200k/s`: bytes per second."""
    byte_count = size(value.removesuffix("/s"))
    if byte_count == 0:
        raise click.BadParameter("a throttle of 0 would stop all copies; pass 1 or more")
    return byte_count


def pair(value: str) -> tuple[str, str]:
    """`key=value` -> (key, value); the value may be empty and may have equals signs."""
    key, equals, text = value.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{value!r} is not KEY=VALUE")
    return key, text


def principal(value: str) -> str:
    """`User:bob`, or `bob` for short."""
    kind, colon, name = value.partition(":")
    if not kind or (colon and not name):
        raise click.BadParameter(f"{value!r} is not a principal: give NAME or User:NAME")
    return value if colon else f"User:{value}"


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """A topic and some of its partitions; an empty set means all."""

    topic: str
    partitions: frozenset[int]

    def has(self, topic: str, partition: int) -> bool:
        return topic == self.topic and (not self.partitions or partition in self.partitions)


def topic_selection(value: str) -> TopicSelection:
    """`topic`, `topic:0`, `topic:0,2,5` -> TopicSelection."""
    topic, colon, numbers = value.partition(":")
    if not colon:
        return TopicSelection(topic, frozenset())
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", numbers):
        raise click.BadParameter(f"{value!r} is not TOPIC or TOPIC:0,1,2")
    return TopicSelection(topic, frozenset(int(number) for number in numbers.split(",")))


def parse_duration(text: str) -> int | None:
    """Milliseconds of a text such as `1d12h`; None if it is not a duration."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    duration_ms = sum(float(number) * DURATION_UNITS_MS[unit] for number, unit in parts)
    return int(duration_ms) if duration_ms < 2**63 else None


def moment_text(timestamp_ms: int) -> str | None:
    """ISO 8601 in UTC with milliseconds; None if it is negative, which means "no timestamp"."""
    if timestamp_ms < 0:
        return None
    # Integer arithmetic: a float of seconds rounds some milliseconds away.
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    try:
        whole = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)  # a producer may have sent any 64-bit number
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{milliseconds:03}Z"


compression_option = click.option(
    "--compression",
    "-z",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
acks_option = click.option(
    "--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True
)
"""Options of commands that produce."""
