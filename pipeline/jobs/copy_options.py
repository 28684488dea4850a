"""What `replay` and `mirror` are told: the names of their settings, and the checked options.

The names are the same in YAML and on the command line, as those of other jobs. Imports no Arrow:
`--help` reads the names.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.settings import check_choice, check_count, check_names, with_prefix

Settings = Mapping[str, tuple[str | None, str]]
"""Name to default and help."""

REPLAY_SETTINGS: Final[Settings] = {
    "table": (None, "Folder or URI of a table that offload has filled with value.format raw."),
    "to": (None, "Topic that is written; made with the partitions of the source if missing."),
    "topic": (None, "Topic of the table; may be left out if the table has one."),
    "name": (None, "Name of the replay: its group is pipe.NAME; replay.TO by default."),
    "bootstrap.servers": ("127.0.0.1:9092", "Any broker of the cluster."),
    "replication.factor": (None, "Of a topic that is made; the broker's default without it."),
    "rows.per.transaction": ("100k", "Records of a transaction, about."),
}
REPLAY_PREFIXES: Final = ("kafka.", "storage.", "catalog.")

CONFIGS_KEPT: Final = (
    "cleanup.policy,retention.ms,retention.bytes,max.message.bytes,delete.retention.ms,"
    "min.compaction.lag.ms,max.compaction.lag.ms"
)
MIRROR_SETTINGS: Final[Settings] = {
    "name": (None, "Name of the mirror: its group in the target is pipe.NAME."),
    "source.bootstrap.servers": (None, "Any broker of the cluster that is read."),
    "target.bootstrap.servers": (None, "Any broker of the cluster that is written."),
    "topics": (None, "Topics, separated by commas."),
    "topics.pattern": (None, "Regular expression of the names of topics, instead of topics."),
    "topics.prefix": ("", "Put before the names of topics in the target."),
    "topic.configs": (CONFIGS_KEPT, "Configs that a topic of the target gets from its source."),
    "groups.pattern": (".*", "Regular expression of the groups whose offsets are translated."),
    "fail.on.data.loss": ("true", "Whether to stop if records were deleted before they moved."),
    "replication.factor": (None, "Of topics that are made; the broker's default without it."),
    "rows.per.transaction": ("100k", "Records of a transaction, about."),
}
MIRROR_PREFIXES: Final = ("source.kafka.", "target.kafka.")

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_BROKER_DEFAULT: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What is replayed, and where to."""

    table: str
    to: str
    topic: str = ""
    name: str
    bootstrap_servers: str
    kafka: Mapping[str, str] = field(default_factory=dict)
    table_options: Mapping[str, str] = field(default_factory=dict)
    append: bool = False
    """Also write to a topic that is not empty."""
    replication_factor: int = _BROKER_DEFAULT
    rows_per_transaction: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """A cluster and Kafka's client options for it."""

    bootstrap_servers: str
    kafka: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """What is mirrored, and where to."""

    name: str
    source: ClusterAccess
    target: ClusterAccess
    topics: tuple[str, ...] = ()
    """Empty if `topic_pattern` chooses them."""
    topic_pattern: str = ""
    prefix: str = ""
    topic_configs: tuple[str, ...] = tuple(CONFIGS_KEPT.split(","))
    group_pattern: str = ".*"
    append: bool = False
    """Also write to topics that are not empty."""
    fail_on_data_loss: bool = True
    """Stop if the source deleted records before they were mirrored."""
    replication_factor: int = _BROKER_DEFAULT
    rows_per_transaction: int = 100_000


def replay_options(settings: Mapping[str, str], *, append: bool) -> ReplayOptions:
    """The options that the settings give; PipelineError says which one is missing or wrong."""
    found = _with_defaults(settings, REPLAY_SETTINGS, REPLAY_PREFIXES, ("table", "to"))
    table = found["table"]
    return ReplayOptions(
        table=table if "://" in table else os.path.abspath(os.path.expanduser(table)),
        to=found["to"],
        topic=found.get("topic", ""),
        name=_checked_name(found.get("name", f"replay.{found['to']}")),
        bootstrap_servers=found["bootstrap.servers"],
        kafka=with_prefix(found, "kafka."),
        table_options={
            name: value
            for name, value in found.items()
            if name.startswith(("storage.", "catalog."))
        },
        append=append,
        replication_factor=_replication_factor(found),
        rows_per_transaction=check_count("rows.per.transaction", found["rows.per.transaction"]),
    )


def mirror_options(settings: Mapping[str, str], *, append: bool) -> MirrorOptions:
    """The options that the settings give; PipelineError says which one is missing or wrong."""
    needed = ("name", "source.bootstrap.servers", "target.bootstrap.servers")
    found = _with_defaults(settings, MIRROR_SETTINGS, MIRROR_PREFIXES, needed)
    topics = tuple(dict.fromkeys(_listed(found.get("topics", ""))))
    if bool(topics) == bool(found.get("topics.pattern")):
        raise PipelineError("set either topics or topics.pattern")
    return MirrorOptions(
        name=_checked_name(found["name"]),
        source=_access(found, "source."),
        target=_access(found, "target."),
        topics=topics,
        topic_pattern=_checked_pattern("topics.pattern", found.get("topics.pattern", "")),
        prefix=found["topics.prefix"],
        topic_configs=tuple(_listed(found["topic.configs"])),
        group_pattern=_checked_pattern("groups.pattern", found["groups.pattern"]),
        append=append,
        fail_on_data_loss=check_choice(
            "fail.on.data.loss", found["fail.on.data.loss"], ("true", "false")
        )
        == "true",
        replication_factor=_replication_factor(found),
        rows_per_transaction=check_count("rows.per.transaction", found["rows.per.transaction"]),
    )


def _with_defaults(
    settings: Mapping[str, str], known: Settings, prefixes: tuple[str, ...], needed: tuple[str, ...]
) -> dict[str, str]:
    check_names(settings, known, prefixes)
    defaults = {name: default for name, (default, _) in known.items() if default is not None}
    found = defaults | dict(settings)
    for name in needed:
        if not found.get(name):
            flag = name.replace(".", "-")
            raise PipelineError(f"{name} is not set: say it in the file, or with --{flag}")
    return found


def _access(found: Mapping[str, str], prefix: str) -> ClusterAccess:
    return ClusterAccess(
        bootstrap_servers=found[f"{prefix}bootstrap.servers"],
        kafka=with_prefix(found, f"{prefix}kafka."),
    )


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise PipelineError(
            f"name is {name!r}: take letters, digits, '.', '_' and '-', as in a topic"
        )
    return name


def _checked_pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise PipelineError(f"{name} is no regular expression: {error}") from error
    return text


def _replication_factor(found: Mapping[str, str]) -> int:
    text = found.get("replication.factor")
    return _BROKER_DEFAULT if text is None else check_count("replication.factor", text)


def _listed(text: str) -> list[str]:
    return [name for each in text.split(",") if (name := each.strip())]
