"""`odradek client`: the clients of a cluster, and the metrics that they push (KIP-714).

Each broker knows its own connections (DescribeClients, 20009): all of them are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import click

from odradek.node.cli.cluster_client import ClusterClient, raise_on_error, with_client
from odradek.node.cli.not_found import nearest_name
from odradek.node.cli.output import Json, Output, Row
from odradek.protocol.messages.clients import (
    DescribeClientsRequest,
    DescribedClient,
    DescribedClientInstance,
    DescribedLabel,
)
from odradek.protocol.types import uuid_from_text, uuid_to_text

LIST_COLUMNS: Final = (
    "client_id",
    "software",
    "version",
    "host",
    "connections",
    "brokers",
    "instances",
    "pushed_seconds_ago",
    "metrics",
)


@dataclass(slots=True)
class Client:
    """The connections and instances of one client id and software from one host."""

    client_id: str
    software: str
    version: str
    host: str
    connection_count: int = 0
    connected_ms: int = -1
    brokers: list[int] = field(default_factory=list)
    instances: list[tuple[int, DescribedClientInstance]] = field(default_factory=list)
    """Each with the broker that it talks to."""

    def facts(self) -> dict[str, Json]:
        """What is true of all its instances."""
        return {
            "client_id": self.client_id,
            "software": self.software,
            "version": self.version,
            "host": self.host,
            "connections": self.connection_count,
            "connected_seconds": _seconds(self.connected_ms),
            "brokers": list(self.brokers),
        }


@click.group(short_help="List the clients and show the metrics they push.")
def client() -> None:
    """List the clients of a cluster, and show the metrics that they push.

    \b
    odradek config set client-metrics all 'metrics=*' interval.ms=10000
    odradek client list
    odradek client show CLIENT_ID

    The first command asks clients for their metrics (KIP-714); `config unset client-metrics all
    metrics interval.ms` ends it.
    """


@client.command("list", short_help="List who is connected or has pushed metrics.")
@with_client
def list_clients(client: ClusterClient, output: Output) -> None:
    """List the clients that are connected, and those that have pushed metrics lately."""
    found = find_clients(client)
    rows = [_listed(each) for each in found]
    output.rows(rows, LIST_COLUMNS, empty="No client is connected.")


@client.command(short_help="Show the metrics that a client pushes.")
@click.argument("name", metavar="CLIENT_ID|INSTANCE_ID")
@with_client
def show(name: str, client: ClusterClient, output: Output) -> None:
    """Show the metrics of a client, by its client id or client instance id.

    The values are those of its last push; what it pushes as deltas is added up.
    """
    found = find_clients(client, name)
    if not found:
        nearest = nearest_name(name, (each.client_id for each in find_clients(client)))
        hint = f"; did you mean {nearest}?" if nearest is not None else ""
        raise click.ClickException(f"{name}: no such client{hint}")
    if output.is_json:
        output.document([_document(each) for each in found])
        return
    for at, each in enumerate(found):
        if at:
            click.echo()
        output.facts(each.facts())
        for broker, instance in each.instances:
            click.echo()
            output.facts(_instance_facts(broker, instance))
            if instance.metrics:
                click.echo()
                output.rows(_metric_rows(instance), ("metric", "labels", "kind", "value"))
    if not any(each.instances for each in found):
        output.hint("It has not asked what metrics to push: enable.metrics.push is off, or it is")
        output.hint("a client without KIP-714.")
    elif not any(instance.metrics for each in found for _, instance in each.instances):
        output.hint(
            "It has pushed no metrics: `odradek config set client-metrics NAME 'metrics=*'`"
        )
        output.hint("asks for them, at its next interval of up to 5 minutes.")


def find_clients(client: ClusterClient, name: str | None = None) -> list[Client]:
    """The clients of all brokers by client id; those of a name with their metrics."""
    request = DescribeClientsRequest(include_metrics=name is not None)
    if name is not None:
        request.client_ids, request.client_instance_ids = [name], _instance_ids(name)
    client.metadata()
    found: dict[tuple[str, str, str, str], Client] = {}
    answer_count = omitted_count = 0
    for broker in client.broker_ids:
        answer = client.ask_node(broker, request)
        if answer is None:
            continue
        raise_on_error(answer, f"broker {broker}")
        answer_count += 1
        omitted_count += answer.omitted_count
        for described in answer.clients:
            each = _client_of(found, described)
            each.connection_count += described.connection_count
            each.connected_ms = max(each.connected_ms, described.connected_ms)
            each.brokers.append(broker)
        for instance in answer.instances:
            each = _client_of(found, instance)
            each.instances.append((broker, instance))
            if broker not in each.brokers:
                each.brokers.append(broker)
    if not answer_count:
        raise click.ClickException("no broker tells of its clients: only Odradek's do")
    if omitted_count:
        click.echo(f"{omitted_count} more clients are not listed.", err=True)
    return [found[key] for key in sorted(found)]


def _client_of(
    found: dict[tuple[str, str, str, str], Client],
    who: DescribedClient | DescribedClientInstance,
) -> Client:
    key = who.client_id, who.software_name, who.software_version, who.client_host
    return found.setdefault(key, Client(*key))


def _instance_ids(name: str) -> list[bytes]:
    # librdkafka's log has ids in standard base64.
    try:
        return [uuid_from_text(name.replace("+", "-").replace("/", "_"))]
    except ValueError:
        return []


def _listed(client: Client) -> Row:
    instances = [instance for _, instance in client.instances]
    ages = [instance.pushed_ms for instance in instances if instance.pushed_ms >= 0]
    return {
        **client.facts(),
        "instances": len({instance.client_instance_id for instance in instances}),
        "instance_ids": [uuid_to_text(instance.client_instance_id) for instance in instances],
        "pushed_seconds_ago": _seconds(min(ages, default=-1)),
        "metrics": sum(instance.series_count for instance in instances),
    }


def _instance_facts(broker: int, instance: DescribedClientInstance) -> Row:
    return {
        "instance": uuid_to_text(instance.client_instance_id),
        "broker": broker,
        "requested_metrics": list(instance.requested_metrics),
        "interval_ms": instance.push_interval_ms if instance.push_interval_ms >= 0 else None,
        "pushed_seconds_ago": _seconds(instance.pushed_ms),
        "terminated": instance.is_terminated,
        "metrics": instance.series_count,
        "omitted": instance.omitted_count,
        **_labels(instance.attributes),
    }


def _metric_rows(instance: DescribedClientInstance) -> Sequence[Row]:
    return [
        {
            "metric": metric.name,
            "labels": _labels(metric.labels),
            "kind": "counter" if metric.is_counter else "gauge",
            "value": metric.value,
        }
        for metric in sorted(instance.metrics, key=lambda each: each.name)
    ]


def _document(client: Client) -> dict[str, Json]:
    return {
        **client.facts(),
        "instances": [
            {
                **_instance_facts(broker, instance),
                "metrics": [dict(row) for row in _metric_rows(instance)],
            }
            for broker, instance in client.instances
        ],
    }


def _labels(labels: Iterable[DescribedLabel]) -> dict[str, Json]:
    return {label.name: label.value for label in labels}


def _seconds(duration_ms: int) -> float | None:
    return None if duration_ms < 0 else round(duration_ms / 1_000, 1)
