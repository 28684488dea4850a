"""`odradek topic explain`: how a topic's partitions stand, who reads them, what holds them up."""

from __future__ import annotations

import time

import click

from odradek.node.cli.client import Connection, with_connection
from odradek.node.cli.completion import complete_topic
from odradek.node.cli.findings import Finding, PartitionView, about_partition, about_reading
from odradek.node.cli.group_explain import finding_rows, tell_findings
from odradek.node.cli.group_facts import Facts
from odradek.node.cli.output import Json, Output, Row, with_output
from odradek.node.cli.partition_facts import views_of
from odradek.node.cli.session import Session


def _row(view: PartitionView) -> dict[str, Json]:
    is_known = view.high_watermark >= 0
    transaction = view.transaction
    return {
        "partition": view.place[1],
        "leader": None if view.leader < 0 else view.leader,
        "replicas": list(view.replicas),
        "in_sync": list(view.in_sync),
        "min_in_sync": view.min_in_sync if is_known else None,
        "start_offset": view.log_start_offset if is_known else None,
        "stable_offset": view.last_stable_offset if is_known else None,
        "end_offset": view.high_watermark if is_known else None,
        "transaction": None
        if transaction is None
        else transaction.transactional_id or f"producer {transaction.producer_id}",
    }


def _reader_rows(view: PartitionView) -> list[Row]:
    return [
        {
            "partition": view.place[1],
            "client": reader.client_id,
            "host": reader.client_host,
            "offset": reader.offset,
            "idle_ms": reader.idle_ms,
            "isolation": "read_committed" if reader.is_read_committed else "read_uncommitted",
        }
        for reader in view.readers
    ]


@click.command("explain")
@click.argument("name", shell_complete=complete_topic, metavar="TOPIC")
@click.option("--partition", "-p", "numbers", type=click.IntRange(min=0), multiple=True)
@with_connection
@with_output
def explain(name: str, numbers: tuple[int, ...], connection: Connection, output: Output) -> None:
    """Say how partitions stand, who reads them, and what holds them up."""
    with Session(connection) as session:
        facts = Facts(session)
        facts.look_up([name])
        places = [place for place in facts.partitions if not numbers or place[1] in numbers]
        if not places:
            what = "no such partition" if facts.partitions else "no such topic"
            raise click.ClickException(f"topic {name!r}: {what}")
        now_ms = time.time_ns() // 1_000_000
        views = views_of(session, facts, places, now_ms)
        findings: list[Finding] = [
            finding for view in views.values() for finding in about_partition(view)
        ]
        groups = [group for group in facts.all_groups() if name in group.topics()]
        for group in groups:
            findings += about_reading(group.told, views, group.now_ms)
    rows = [_row(view) for view in views.values()]
    readers = [row for view in views.values() for row in _reader_rows(view)]
    names: list[Json] = [group.name for group in groups]
    if output.is_json:
        output.document(
            {
                "topic": name,
                "groups": names,
                "findings": finding_rows(findings),
                "partitions": rows,
                "readers": readers,
            }
        )
        return
    tell_findings(findings, otherwise="Nothing holds it up.")
    click.echo()
    columns = ["partition", "leader", "in_sync", "start_offset", "stable_offset", "end_offset"]
    output.rows(rows, columns + ["transaction"] * any(row["transaction"] for row in rows))
    if names:
        click.echo()
        output.facts({"groups": names})
    if readers:
        click.echo()
        output.rows(readers, ["partition", "client", "host", "offset", "idle_ms", "isolation"])
