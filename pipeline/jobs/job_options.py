"""What a job that fills a table is told: one set of options for `offload`, and for those who look
at its table and its topics afterwards (`verify`, `lag`).

The names are the same in YAML, on the command line (`--value-format` for `value.format`) and here.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.setting_names import (
    FORMATS,
    PREFIXES,
    SETTINGS,
    TIME_PARTITIONS,
    VALUE_FORMATS,
)
from odradek.pipeline.jobs.settings import check_choice, check_count, check_names, with_prefix
from odradek.pipeline.kafka_types import EARLIEST, LATEST
from odradek.pipeline.option_files import with_absolute_paths

# Names of topics have the same characters: the dead-letter topic has the job's name in it.
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_MASTER: Final = re.compile(r"local(\[.+\])?$|local-cluster\[.+\]$|spark://.|k8s://.|yarn$")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The checked options of a job."""

    name: str
    bootstrap_servers: str
    topics: tuple[str, ...]
    """Empty if `topic_pattern` chooses them."""
    topic_pattern: str
    table: str
    """An absolute path, or a URI."""
    format: str
    value_format: str
    value_schema: str | None
    value_message: str | None
    value_registry: str | None
    value_subject: str | None
    time_partition: str
    start_ms: int
    """EARLIEST, LATEST, or a time of records."""
    dead_letter_topic: str
    fails_on_data_loss: bool
    rows_per_trigger: int
    bytes_per_trigger: int | None
    master: str
    kafka: Mapping[str, str]
    """Kafka's client options, without `kafka.`."""
    spark: Mapping[str, str]
    """Spark's configuration, with `spark.`."""
    table_options: Mapping[str, str]
    """`storage.*` and `catalog.*` as `open_table` takes them."""

    @property
    def group(self) -> str:
        """The group that shows how far the job is."""
        return f"pipe.{self.name}"


def job_options(settings: Mapping[str, str]) -> JobOptions:
    """The options that the settings give; PipelineError says which one is missing or wrong."""
    check_names(settings, SETTINGS, PREFIXES)
    defaults = {name: default for name, (default, _) in SETTINGS.items() if default is not None}
    found = defaults | dict(settings)
    for name in ("name", "table"):
        if not found.get(name):
            raise PipelineError(f"{name} is not set: say it in the file, or with --{name}")
    if not _NAME.fullmatch(found["name"]):
        raise PipelineError(
            f"name is {found['name']!r}: take letters, digits, '.', '_' and '-', as in a topic"
        )
    topics = tuple(dict.fromkeys(_listed(found.get("topics", ""))))
    if bool(topics) == bool(found.get("topics.pattern")):
        raise PipelineError("set either topics or topics.pattern")
    limit = found.get("bytes.per.trigger")
    return JobOptions(
        name=found["name"],
        bootstrap_servers=found["bootstrap.servers"],
        topics=topics,
        topic_pattern=_checked_pattern(found.get("topics.pattern", "")),
        table=_location(found["table"]),
        format=check_choice("format", found["format"], FORMATS),
        value_format=check_choice("value.format", found["value.format"], VALUE_FORMATS),
        value_schema=found.get("value.schema"),
        value_message=found.get("value.message"),
        value_registry=found.get("value.registry"),
        value_subject=found.get("value.subject"),
        time_partition=check_choice("time.partition", found["time.partition"], TIME_PARTITIONS),
        start_ms=start_time(found["start"]),
        dead_letter_topic=found.get("dead.letter.topic", f"{found['name']}.dlq"),
        fails_on_data_loss=check_choice(
            "fail.on.data.loss", found["fail.on.data.loss"], ("true", "false")
        )
        == "true",
        rows_per_trigger=check_count("rows.per.trigger", found["rows.per.trigger"]),
        bytes_per_trigger=None if limit is None else check_count("bytes.per.trigger", limit),
        master=_checked_master(found["master"]),
        kafka=with_absolute_paths(with_prefix(found, "kafka.")),
        spark={name: value for name, value in found.items() if name.startswith("spark.")},
        table_options={
            name: value
            for name, value in found.items()
            if name.startswith(("storage.", "catalog."))
        },
    )


def start_time(text: str) -> int:
    """EARLIEST, LATEST, or the milliseconds of a time; one without a zone is in UTC."""
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text)
    if named is not None:
        return named
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(
            f"start is {text!r}: take earliest, latest, or a time such as 2026-11-23T12:00:00Z"
        ) from None
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)


def _listed(text: str) -> list[str]:
    return [name for each in text.split(",") if (name := each.strip())]


def _checked_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise PipelineError(f"topics.pattern is no regular expression: {error}") from error
    return text


def _checked_master(text: str) -> str:
    """Spark itself says so only with Java's stack."""
    if _MASTER.match(text):
        return text
    raise PipelineError(
        f"master is {text!r}: take local[N], local-cluster[...], spark://HOST:PORT, yarn or k8s://URL"
    )


def _location(text: str) -> str:
    """Workers of another folder get the path, too."""
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))
