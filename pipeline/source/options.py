"""The options of `spark.read` and `spark.readStream`, checked.

They are those of the stock Kafka connector (Spark's Kafka integration guide), so that a job changes
one word, and three of our own: `maxBytesPerTrigger`, `commitToGroup` and `pushFilters`. What is
unknown or malformed raises PipelineError. An option that has no meaning without Kafka's consumer
(how it polls, its group) is taken and has no effect; `kafka.group.id` and `groupIdPrefix` are such,
because no group is joined.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.option_files import with_absolute_paths
from odradek.pipeline.source.kafka_options import KAFKA_OPTIONS, REFUSED
from odradek.pipeline.source.offset_bounds import OffsetBound, ending_bound, starting_bound
from odradek.pipeline.source.subscription import TopicSubscription, subscription_of

OPTIONS: Final = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    # Of our own.
    "maxBytesPerTrigger",
    "commitToGroup",
    "pushFilters",
)
"""All but those of Kafka's clients, which begin with `kafka.`."""

DEFAULT_TIMEOUT_MS: Final = 60_000  # Kafka's default: default.api.timeout.ms
DEFAULT_FETCH_MAX_BYTES: Final = 4 << 20
DEFAULT_TRIGGER_DELAY_MS: Final = 15 * 60_000  # The stock connector's: maxTriggerDelay is 15m.

_LONG_MAX: Final = (1 << 63) - 1
_TIME: Final = re.compile(r"(\d+)\s*([a-z]*)")
_TIME_UNITS_MS: Final = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?")
_SIZE_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a query reads and how. Limits that are not set are None."""

    bootstrap_servers: str
    kafka: Mapping[str, str] = field(repr=False)
    """The options of Kafka's clients, without their prefix `kafka.`. They may hold passwords."""
    subscription: TopicSubscription
    starting: OffsetBound
    ending: OffsetBound
    is_latest_without_match: bool
    """Whether a starting time after all records stands for the end of the log."""
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    max_trigger_delay_ms: int
    include_headers: bool
    is_read_committed: bool
    commit_to_group: str
    """The consumer group that is shown the offsets of a stream; empty for none."""
    is_pushing_filters: bool
    timeout_s: float
    fetch_max_bytes: int
    offset_attempts: int
    offset_retry_ms: int


def source_options(given: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """The checked options; the names may be in any case. Raises PipelineError."""
    options = {name.lower(): value for name, value in given.items()}
    kafka = _kafka_options(options)
    _check_names(options)
    servers = kafka.get("bootstrap.servers", "").strip()
    if not servers:
        raise PipelineError("kafka.bootstrap.servers is not set: name at least one HOST:PORT")
    max_offsets = _positive(options, "maxOffsetsPerTrigger")
    min_offsets = _positive(options, "minOffsetsPerTrigger")
    if max_offsets and min_offsets and min_offsets > max_offsets:
        raise PipelineError(
            f"minOffsetsPerTrigger {min_offsets} is above maxOffsetsPerTrigger {max_offsets}:"
            " lower it"
        )
    fetch_max_bytes = min(
        _positive(kafka, "fetch.max.bytes", prefix="kafka.") or DEFAULT_FETCH_MAX_BYTES,
        _positive(kafka, "max.partition.fetch.bytes", prefix="kafka.") or DEFAULT_FETCH_MAX_BYTES,
    )
    timeout_ms = (
        _positive(options, "kafkaConsumer.pollTimeoutMs")
        or _positive(kafka, "default.api.timeout.ms", prefix="kafka.")
        or DEFAULT_TIMEOUT_MS
    )
    return SourceOptions(
        bootstrap_servers=servers,
        kafka=kafka,
        subscription=subscription_of(options),
        starting=starting_bound(options, is_stream=is_stream),
        ending=ending_bound(options, is_stream=is_stream),
        is_latest_without_match=_choice(
            options, "startingOffsetsByTimestampStrategy", ("error", "latest")
        )
        == "latest",
        fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
        min_partitions=_positive(options, "minPartitions"),
        max_records_per_partition=_positive(options, "maxRecordsPerPartition"),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_bytes_per_trigger=_size(options, "maxBytesPerTrigger"),
        max_trigger_delay_ms=_duration_ms(options, "maxTriggerDelay", DEFAULT_TRIGGER_DELAY_MS),
        include_headers=_boolean(options, "includeHeaders", default=False),
        is_read_committed=_choice(
            kafka, "isolation.level", ("read_uncommitted", "read_committed"), prefix="kafka."
        )
        == "read_committed",
        commit_to_group=options.get("committogroup", "").strip(),
        is_pushing_filters=_boolean(options, "pushFilters", default=False),
        timeout_s=timeout_ms / 1000,
        fetch_max_bytes=fetch_max_bytes,
        offset_attempts=_positive(options, "fetchOffset.numRetries") or 3,
        offset_retry_ms=_positive(options, "fetchOffset.retryIntervalMs") or 1_000,
    )


def _kafka_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those of Kafka's clients, without their prefix."""
    kafka = {
        name.removeprefix("kafka."): value
        for name, value in options.items()
        if name.startswith("kafka.")
    }
    for name in kafka:
        if name in REFUSED:
            raise PipelineError(f"kafka.{name} is not supported: {REFUSED[name]}")
        if name not in KAFKA_OPTIONS:
            raise PipelineError(
                f"unknown option kafka.{name}: Kafka's consumer has none of this name"
                f"{_similar(name, KAFKA_OPTIONS, prefix='kafka.')}"
            )
    return with_absolute_paths(kafka)


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in OPTIONS}
    for name in options:
        if name not in known and not name.startswith("kafka."):
            raise PipelineError(
                f"unknown option {name}: the Kafka source has none of this name"
                f"{_similar(name, known, names=known)}"
            )


def _similar(
    name: str,
    known: Mapping[str, str] | frozenset[str],
    *,
    prefix: str = "",
    names: Mapping[str, str] | None = None,
) -> str:
    """`; did you mean ...?`, or nothing if no known name is near."""
    near = difflib.get_close_matches(name, known, n=1)
    if not near:
        return "; remove it"
    return f"; did you mean {prefix}{(names or {}).get(near[0], near[0])}?"


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name.lower())
    if value is None:
        return default
    word = value.strip().lower()
    if word not in ("true", "false"):
        raise PipelineError(f"{name} {value!r} is neither true nor false")
    return word == "true"


def _choice(
    options: Mapping[str, str], name: str, choices: tuple[str, ...], *, prefix: str = ""
) -> str:
    """The chosen one; the first is the default."""
    value = options.get(name.lower(), choices[0])
    word = value.strip().lower()
    if word not in choices:
        raise PipelineError(f"{prefix}{name} {value!r} is not one of {', '.join(choices)}")
    return word


def _positive(options: Mapping[str, str], name: str, *, prefix: str = "") -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    text = value.strip()
    if not text.isdecimal() or not 0 < int(text) <= _LONG_MAX:
        raise PipelineError(f"{prefix}{name} {value!r} is no whole number above 0")
    return int(text)


def _duration_ms(options: Mapping[str, str], name: str, default: int) -> int:
    value = options.get(name.lower())
    if value is None:
        return default
    found = _TIME.fullmatch(value.strip().lower())
    if found is None or found[2] not in _TIME_UNITS_MS:
        raise PipelineError(f"{name} {value!r} is no time: write for example 30s, 15m or 1h")
    return int(found[1]) * _TIME_UNITS_MS[found[2]]


def _size(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    found = _SIZE.fullmatch(value.strip().lower())
    if found is None or int(found[1]) == 0:
        raise PipelineError(f"{name} {value!r} is no size: write for example 64m, 1g or bytes")
    return int(found[1]) << _SIZE_UNITS[found[2]]
