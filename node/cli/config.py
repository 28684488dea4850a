"""`odradek config`: settings of topics, brokers and groups, where each comes from, and changes.

Changes are incremental (KIP-339): only the named keys move. They take effect at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final, TypeVar

import click

from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.cluster.metadata.config_tables import broker_config
from odradek.node.cli import config_why, configs
from odradek.node.cli.cluster_client import (
    ClusterClient,
    RequestResult,
    raise_on_error,
    with_client,
)
from odradek.node.cli.not_found import TOPIC, no_such_node, raise_refusal
from odradek.node.cli.output import Json, Output, Row
from odradek.node.cli.parameters import pair
from odradek.protocol.messages.configs import (
    DescribeConfigSourcesRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from odradek.protocol.messages.metadata import DescribeClusterRequest

R = TypeVar("R")

HIDDEN: Final = "(hidden)"
DEFAULT: Final = "default"
"""What the command line calls all brokers: the broker with the empty name in the protocol."""
KINDS: Final[Mapping[str, int]] = {
    "topic": configs.TOPIC,
    "broker": configs.BROKER,
    "group": configs.GROUP,
    "broker-logger": configs.BROKER_LOGGER,
    "client-metrics": configs.CLIENT_METRICS,
}
_OF_ONE_BROKER: Final = (configs.BROKER, configs.BROKER_LOGGER)


def resource_arguments(command: Callable[..., R]) -> Callable[..., R]:
    """The arguments that name what is configured: `topic orders`, `broker 1`, `broker default` (all
    brokers), `group workers`, `broker-logger 1` (the levels of broker 1's loggers), `client-metrics
    all` (a client metrics subscription)."""
    return click.argument("kind", type=click.Choice(list(KINDS)), metavar="|".join(KINDS))(
        click.argument("name")(command)
    )


@click.group(short_help="Read and change settings, and log levels.")
def config() -> None:
    """Read and change settings and log levels.

    `broker default` is what holds for all brokers, unless one has its own. `broker-logger 1` has
    the log levels of broker 1, until it restarts. `client-metrics NAME` is a subscription to
    metrics that clients push (KIP-714): it exists while a setting of it is set.
    """


@config.command("list")
@resource_arguments
@click.option("--all", "show_all", is_flag=True, help="Include settings at their default.")
@with_client
def list_configs(
    kind: str, name: str, show_all: bool, client: ClusterClient, output: Output
) -> None:
    """List the settings that differ from the default.

    NAME is a topic, a group, or a broker id; `default` for all brokers.
    """
    rows = [_row(entry) for entry in read_configs(kind, name, client) if show_all or _is_set(entry)]
    output.rows(
        rows,
        ["key", "value", "source"],
        empty=f"Every setting of {kind} {name} is at its default (see them with --all).",
    )


@config.command(short_help="Show settings and where each value comes from.")
@resource_arguments
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@with_client
def describe(
    kind: str, name: str, keys: tuple[str, ...], client: ClusterClient, output: Output
) -> None:
    """Show settings with where each value comes from and what it would fall back to."""
    entries = {entry.name: entry for entry in read_configs(kind, name, client)}
    unknown = [key for key in keys if key not in entries]
    if unknown:
        raise click.ClickException(f"{kind} {name} has no setting {', '.join(unknown)}")
    documents: list[Row] = []
    for key in keys or entries:
        entry = entries[key]
        # Sources in order of precedence: the first one is in force.
        layers: list[Row] = [
            {"source": _source(layer.source), "key": layer.name, "value": layer.value}
            for layer in entry.synonyms
        ]
        documents.append({**_row(entry), "layers": layers})
    if output.is_json:
        output.document(documents)
        return
    output.rows(documents, ["key", "value", "source", "read_only", "sensitive"])
    for document in documents if keys else []:
        layers_of_key = document["layers"]
        assert isinstance(layers_of_key, list)
        if layers_of_key:
            click.echo()
            output.rows(layers_of_key, ["source", "key", "value"])


@config.command("set")
@resource_arguments
@click.argument("pairs", nargs=-1, type=pair, metavar="KEY=VALUE...")
@click.option(
    "--file",
    "files",
    type=pair,
    multiple=True,
    metavar="KEY=FILE",
    help="The value is what FILE has; - is standard input. For secrets.",
)
@click.option("--dry-run", is_flag=True, help="Validate only, change nothing.")
@with_client
def set_configs(
    kind: str,
    name: str,
    pairs: tuple[tuple[str, str], ...],
    files: tuple[tuple[str, str], ...],
    dry_run: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """Set KEY to VALUE, at run time.

    NAME is a topic, a broker id or `default` for all brokers, or a group. A secret is read from a
    file, because others see the arguments of a command.
    """
    if not pairs and not files:
        raise click.UsageError("Give at least one KEY=VALUE, or --file KEY=FILE.")
    for key, _ in pairs:
        if _is_secret(key):
            raise click.UsageError(
                f"{key} is a secret, and others see the arguments of a command: write it to a file"
                f" and give --file {key}=FILE, or - for standard input."
            )
    wanted = dict(pairs) | {key: _text_of(file) for key, file in files}
    _alter(kind, name, wanted, dry_run, client)
    shown = {key: HIDDEN if _is_secret(key) else value for key, value in wanted.items()}
    output.done(
        "\n".join(f"{kind} {name}: {key} = {value}" for key, value in shown.items()),
        {"kind": kind, "name": name, "set": shown, "dry_run": dry_run},
    )


def _is_secret(key: str) -> bool:
    definition = broker_config(key)
    return definition is not None and definition.is_sensitive


def _text_of(file: str) -> str:
    """The content of a file without the newline at its end; - is standard input."""
    try:
        with click.open_file(file, encoding="utf-8") as stream:
            return str(stream.read()).removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise click.ClickException(f"cannot read {file}: {reason}") from error


@config.command()
@resource_arguments
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--dry-run", is_flag=True, help="Validate only, change nothing.")
@with_client
def unset(
    kind: str,
    name: str,
    keys: tuple[str, ...],
    dry_run: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """Put KEY back to its default."""
    _alter(kind, name, dict.fromkeys(keys), dry_run, client)
    output.done(
        "\n".join(f"{kind} {name}: {key} is reset to its default" for key in keys),
        {"kind": kind, "name": name, "unset": list(keys), "dry_run": dry_run},
    )


@config.command(short_help="Say where the value of a setting comes from, and why it wins.")
@click.argument("key")
@click.option("--broker", type=click.IntRange(min=0), help="The broker that is asked.")
@click.option("--topic", help="The setting of this topic, on that broker.")
@click.option("--group", help="The setting of this group, on that broker.")
@with_client
def why(
    key: str,
    broker: int | None,
    topic: str | None,
    group: str | None,
    client: ClusterClient,
    output: Output,
) -> None:
    """Say why KEY has its value: everything that sets it, the strongest first.

    That is the topic or group, this broker or all brokers at run time, and what the broker was
    started with: its command line, environment, configuration file (with the line) and default.
    Without --broker the broker with the smallest id is asked.
    """
    if topic is not None and group is not None:
        raise click.UsageError("Give --topic or --group, not both.")
    client.metadata()
    asked = min(client.broker_ids) if broker is None else broker
    kind, name = ("topic", topic) if topic is not None else ("group", group)
    if name is None:
        kind, name = "broker", str(asked)
    _check_broker(configs.BROKER, str(asked), client)
    described = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=KINDS[kind], resource_name=name)],
        include_synonyms=True,
    )
    (result,) = client.ask_broker(asked, described).results
    _raise_refusal(kind, name, result, client)
    entries = {entry.name: entry for entry in result.configs}
    if key not in entries:
        close = get_close_matches(key, entries, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise click.ClickException(f"{kind} {name} has no setting {key}{hint}")
    entry = entries[key]
    wanted = DescribeConfigSourcesRequest(
        keys=[key, *dict.fromkeys(synonym.name for synonym in entry.synonyms)]
    )
    sources = client.ask_node(asked, wanted)
    resource = f"{kind} {name}"
    rows = config_why.layers(entry, resource, asked, sources)
    said = config_why.explanation(entry, resource, rows, sources)
    if output.is_json:
        head = _row(entry)
        output.document(
            {"resource": resource, "broker": asked, **head, "layers": rows, "explanation": said}
        )
        return
    click.echo("\n".join(said))
    if rows:
        click.echo()
        output.rows(rows, ["in_force", "value", "key", "origin"])
        click.echo(f"\n{config_why.PRECEDENCE}")


def _resource(kind: str, name: str) -> tuple[int, str]:
    """The resource type and name as the protocol has them: all brokers have the empty name."""
    if kind == "broker" and name == DEFAULT:
        return configs.BROKER, ""
    if KINDS[kind] in _OF_ONE_BROKER and not name.isdigit():
        hint = f", nor {DEFAULT!r} for all of them" if kind == "broker" else ""
        raise click.BadParameter(f"{name!r} is not a broker id such as 0{hint}", param_hint="NAME")
    return KINDS[kind], name


def read_configs(
    kind: str, name: str, client: ClusterClient
) -> list[DescribeConfigsResourceResult]:
    """The configs of a topic, broker, group or of all brokers, by key."""
    resource_type, resource_name = _resource(kind, name)
    _check_broker(resource_type, resource_name, client)
    results = configs.describe(client, resource_type, [resource_name], synonyms=True)
    if not results:
        raise click.ClickException(f"{kind} {name} does not answer")
    _raise_refusal(kind, name, results[0], client)
    return sorted(results[0].configs, key=lambda entry: entry.name)


def _alter(
    kind: str,
    name: str,
    changes: Mapping[str, str | None],
    dry_run: bool,
    client: ClusterClient,
) -> None:
    resource_type, resource_name = _resource(kind, name)
    _check_broker(resource_type, resource_name, client)
    answers = configs.alter(client, resource_type, {resource_name: changes}, is_dry_run=dry_run)
    if not answers:
        raise click.ClickException(f"{kind} {name} does not answer")
    done = answers[0]
    _raise_refusal(kind, name, done, client)


def _check_broker(resource_type: int, name: str, client: ClusterClient) -> None:
    """ClickException for a broker that is not registered."""
    client.metadata()
    if resource_type not in _OF_ONE_BROKER or not name or int(name) in client.broker_ids:
        return
    known = client.ask(DescribeClusterRequest(include_fenced_brokers=True)).brokers
    registered = {broker.broker_id for broker in known}
    if int(name) not in registered:
        raise no_such_node(int(name), registered)


def _raise_refusal(kind: str, name: str, result: RequestResult, client: ClusterClient) -> None:
    if kind == "topic":
        raise_refusal(client, TOPIC, name, result)
    raise_on_error(result, f"{kind} {name}")


def _is_set(entry: DescribeConfigsResourceResult) -> bool:
    """Whether the value is not the default. All levels of loggers have the same source; ours say
    what gives them."""
    source = entry.config_source
    if source == ConfigSource.DYNAMIC_BROKER_LOGGER and entry.synonyms:
        source = entry.synonyms[0].source
        return source == ConfigSource.DYNAMIC_BROKER_LOGGER
    return _source(source) != "default_config"


def _row(entry: DescribeConfigsResourceResult) -> dict[str, Json]:
    return {
        "key": entry.name,
        "value": HIDDEN if entry.is_sensitive else entry.value,
        "source": _source(entry.config_source),
        "read_only": entry.read_only,
        "sensitive": entry.is_sensitive,
    }


def _source(code: int) -> str:
    return configs.SOURCES.get(code, f"source_{code}")
