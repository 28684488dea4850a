"""Why a setting has the value that it has: all values that it was given, the strongest first.

From the answers to DescribeConfigs, and to DescribeConfigSources for what the broker was started
with; a broker of Kafka has no answer to that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.cluster.metadata.node_settings import RESTART_REASONS
from odradek.node.cli.configs import SOURCES
from odradek.node.cli.output import Row
from odradek.node.node_overrides import NODE_OVERRIDES
from odradek.protocol.messages.configs import (
    DescribeConfigSourcesResponse,
    DescribeConfigsResourceResult,
)

PRECEDENCE: Final = (
    "The topic's or group's own value wins over that of one broker, that over the one of all"
    " brokers, and all of them over what the broker was started with: command line, environment,"
    " file. The default is last."
)


def layers(
    entry: DescribeConfigsResourceResult,
    resource: str,
    broker: int,
    sources: DescribeConfigSourcesResponse | None,
) -> list[Row]:
    """The values of a key, the strongest first. `resource` is a text such as `topic orders`."""
    known = {} if sources is None else {key.name: key.values for key in sources.keys}
    origins: Mapping[int, str] = {
        ConfigSource.DYNAMIC_TOPIC: f"set on {resource}",
        ConfigSource.GROUP: f"set on {resource}",
        ConfigSource.DYNAMIC_BROKER: f"set on broker {broker} at run time",
        ConfigSource.DYNAMIC_DEFAULT_BROKER: "set for all brokers at run time",
        ConfigSource.STATIC_BROKER: f"broker {broker} was started with it",
        ConfigSource.DEFAULT: "built-in default",
    }
    rows: list[Row] = []
    for synonym in entry.synonyms:
        written = (
            known.get(synonym.name, []) if synonym.source == ConfigSource.STATIC_BROKER else []
        )
        values: list[tuple[str | None, str]] = [(each.value, each.origin) for each in written] or [
            (synonym.value, origins.get(synonym.source, SOURCES.get(synonym.source, "unknown")))
        ]
        for value, origin in values:
            rows.append(
                {
                    "in_force": not rows,
                    "key": synonym.name,
                    "value": "(hidden)" if entry.is_sensitive else value,
                    "origin": origin,
                    "source": SOURCES.get(synonym.source, f"source_{synonym.source}"),
                }
            )
    return rows


def explanation(
    entry: DescribeConfigsResourceResult,
    resource: str,
    rows: Sequence[Row],
    sources: DescribeConfigSourcesResponse | None,
) -> list[str]:
    """Sentences that say what is in force and what else there is to know."""
    value = "(hidden)" if entry.is_sensitive else entry.value
    if not rows:
        return [f"{entry.name} of {resource} is not set and has no default."]
    first = rows[0]
    text = f"{entry.name} of {resource} is {value}: {first['origin']}"
    if first["key"] != entry.name:
        text += f", as {first['key']}"
    said = [f"{text}."]
    if len(rows) > 1:
        weaker = "; ".join(f"{row['value']} ({row['origin']})" for row in rows[1:])
        said.append(f"It wins over {weaker}.")
    if entry.read_only:
        said.append("It cannot be changed through the cluster while the broker runs.")
    keys = {row["key"] for row in rows} | {entry.name}
    for key in [] if sources is None else sources.restart_keys:
        if key in keys:
            reason = RESTART_REASONS.get(key, "it is read when the node starts")
            said.append(
                f"The configuration file has another value, which needs a restart: {reason}."
            )
    if sources is not None and sources.settings_problem and keys & NODE_OVERRIDES:
        said.append(
            "What is set for the broker through the cluster is not in effect:"
            f" {sources.settings_problem}."
        )
    if sources is not None and sources.file_problem:
        said.append(f"The configuration file, as it is now, is refused: {sources.file_problem}.")
    return said
