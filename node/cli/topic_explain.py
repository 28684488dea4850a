"""`odradek topic explain`: state of a topic's partitions, their readers, and what blocks them."""

from __future__ import annotations

import time

import click

from odradek.node.cli.cluster_client import ClusterClient, with_client
from odradek.node.cli.completion import complete_topic
from odradek.node.cli.findings import Finding, PartitionView, partition_findings, reader_findings
from odradek.node.cli.group_explain import finding_rows, print_findings
from odradek.node.cli.group_queries import GroupQueries
from odradek.node.cli.listener_problems import listener_findings, listener_problems
from odradek.node.cli.not_found import TOPIC, no_such_partition, not_found
from odradek.node.cli.output import Json, Output, Row, known
from odradek.node.cli.partition_facts import collect_partition_views
from odradek.node.cli.replica_findings import replica_findings
from odradek.node.cli.storage_problems import storage_findings_of


def _row(view: PartitionView) -> dict[str, Json]:
    transaction = view.transaction
    return {
        "partition": view.partition_id[1],
        "leader": known(view.leader),
        "replicas": list(view.replicas),
        "in_sync": list(view.in_sync),
        "out_of_sync": list(view.out_of_sync),
        "fenced": list(view.fenced),
        "min_in_sync": view.min_in_sync if view.high_watermark >= 0 else None,
        "start_offset": known(view.log_start_offset),
        "stable_offset": known(view.last_stable_offset),
        "end_offset": known(view.high_watermark),
        "transaction": None
        if transaction is None
        else transaction.transactional_id or f"producer {transaction.producer_id}",
    }


def _reader_rows(view: PartitionView) -> list[Row]:
    return [
        {
            "partition": view.partition_id[1],
            "client": reader.client_id,
            "host": reader.client_host,
            "offset": reader.offset,
            "idle_ms": reader.idle_ms,
            "isolation": "read_committed" if reader.is_read_committed else "read_uncommitted",
        }
        for reader in view.readers
    ]


@click.command("explain", short_help="Show partitions, their readers, and what blocks them.")
@click.argument("name", shell_complete=complete_topic, metavar="TOPIC")
@click.option("--partition", "-p", "numbers", type=click.IntRange(min=0), multiple=True)
@with_client
def explain(name: str, numbers: tuple[int, ...], client: ClusterClient, output: Output) -> None:
    """Show the state of partitions, their readers, and what blocks them."""
    queries = GroupQueries(client)
    queries.fetch_metadata([name])
    partition_ids = [
        partition_id
        for partition_id in queries.partitions
        if not numbers or partition_id[1] in numbers
    ]
    if not queries.partitions:
        raise not_found(client, TOPIC, name)
    if missing := set(numbers) - {number for _, number in queries.partitions}:
        raise no_such_partition(name, missing, len(queries.partitions))
    now_ms = time.time_ns() // 1_000_000
    views = collect_partition_views(client, queries, partition_ids, now_ms)
    leaders = {view.leader for view in views.values()} - {-1}
    findings: list[Finding] = [
        *storage_findings_of(views.values()),
        *listener_findings(listener_problems(client, sorted(leaders))),
        *replica_findings(views.values()),
        *(finding for view in views.values() for finding in partition_findings(view)),
    ]
    groups = [group for group in queries.all_groups() if name in group.topics()]
    for group in groups:
        findings += reader_findings(group.explained, views, group.now_ms)
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
    print_findings(findings, otherwise="No problems found.")
    click.echo()
    columns = ["partition", "leader", "in_sync", "start_offset", "stable_offset", "end_offset"]
    if any(row["out_of_sync"] for row in rows):
        columns.insert(3, "out_of_sync")
    output.rows(rows, columns + ["transaction"] * any(row["transaction"] for row in rows))
    if names:
        click.echo()
        output.facts({"groups": names})
    if readers:
        click.echo()
        output.rows(readers, ["partition", "client", "host", "offset", "idle_ms", "isolation"])
