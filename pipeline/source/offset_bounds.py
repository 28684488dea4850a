"""Where reading starts and where it ends, as the options say it: not yet offsets of a cluster.

The names, the JSON and the precedence are those of the stock Kafka connector: a timestamp for all
partitions goes before timestamps by partition, and these before offsets.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionName


@dataclass(frozen=True, slots=True)
class BoundAtTime:
    """The same for all partitions: EARLIEST, LATEST, or the first record at or after a time."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class BoundAtTimes:
    """By partition the first record at or after a time in ms."""

    timestamps_ms: Mapping[PartitionName, int]


@dataclass(frozen=True, slots=True)
class BoundAtOffsets:
    """By partition an offset, EARLIEST or LATEST."""

    offsets: Mapping[PartitionName, int]


OffsetBound: TypeAlias = BoundAtTime | BoundAtTimes | BoundAtOffsets

AT_EARLIEST: Final = BoundAtTime(EARLIEST)
AT_LATEST: Final = BoundAtTime(LATEST)

_WORDS: Final = {"earliest": AT_EARLIEST, "latest": AT_LATEST}


def starting_bound(options: Mapping[str, str], *, is_stream: bool) -> OffsetBound:
    """Where reading starts: by default a stream at the end of the log, a batch at its start."""
    bound = _bound(options, "starting") or (AT_LATEST if is_stream else AT_EARLIEST)
    if not is_stream and (bound == AT_LATEST or _has_offset(bound, LATEST)):
        raise PipelineError(
            "startingOffsets cannot be latest for a batch query, which would read nothing:"
            " set it to earliest or to an offset"
        )
    return bound


def ending_bound(options: Mapping[str, str], *, is_stream: bool) -> OffsetBound:
    """Where reading ends: by default at the end of the log. A stream has no end."""
    bound = _bound(options, "ending")
    if is_stream and bound is not None:
        raise PipelineError(
            "a stream has no end: remove endingOffsets, endingTimestamp and"
            " endingOffsetsByTimestamp, or read a batch"
        )
    bound = bound or AT_LATEST
    if bound == AT_EARLIEST or _has_offset(bound, EARLIEST):
        raise PipelineError(
            "endingOffsets cannot be earliest, which would read nothing: set it to latest or to"
            " an offset"
        )
    return bound


def partition_values(option: str, text: str) -> dict[PartitionName, int]:
    """The values of `{"topic":{"0":23,"1":-2}}`."""
    try:
        return {
            PartitionName(topic, _whole(partition)): _value(value)
            for topic, partitions in json.loads(text).items()
            for partition, value in partitions.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise PipelineError(
            f'{option} {text!r} is not of the form {{"topic":{{"0":23,"1":42}}}}: correct it'
        ) from error


def _bound(options: Mapping[str, str], side: str) -> OffsetBound | None:
    at_time = options.get(f"{side}timestamp")
    if at_time is not None:
        return BoundAtTime(_timestamp_ms(f"{side}Timestamp", at_time.strip()))
    at_times = options.get(f"{side}offsetsbytimestamp")
    if at_times is not None:
        option = f"{side}OffsetsByTimestamp"
        times = partition_values(option, at_times)
        for value in times.values():
            _timestamp_ms(option, str(value))
        return BoundAtTimes(times)
    at_offsets = options.get(f"{side}offsets")
    if at_offsets is None:
        return None
    option = f"{side}Offsets"
    word = at_offsets.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    if not word.startswith("{"):
        raise PipelineError(
            f"{option} {at_offsets!r} is neither earliest nor latest nor of the form"
            ' {"topic":{"0":23,"1":-2}}: correct it'
        )
    offsets = partition_values(option, at_offsets)
    for name, offset in offsets.items():
        if offset < EARLIEST:
            raise PipelineError(
                f"{option} has offset {offset} for {name}: it is an offset,"
                f" {LATEST} for latest or {EARLIEST} for earliest"
            )
    return BoundAtOffsets(offsets)


def _has_offset(bound: OffsetBound, offset: int) -> bool:
    return isinstance(bound, BoundAtOffsets) and offset in bound.offsets.values()


def _timestamp_ms(option: str, text: str) -> int:
    if not text.isdecimal():
        raise PipelineError(
            f"{option} {text!r} is no time: give milliseconds since 1970 (UTC), for example"
            " 1767225600000"
        )
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no partition")
    return int(text)


def _value(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is no whole number")
    return value
