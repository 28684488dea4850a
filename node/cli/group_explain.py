"""`odradek group explain`: the state of a group, why it does not progress, and its recent events.

Findings first, each with the next step, then the members with their times in the last rebalance,
then the events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import click

from odradek.node.cli.cluster_client import ClusterClient, with_client
from odradek.node.cli.completion import complete_group
from odradek.node.cli.findings import (
    Finding,
    duration_text,
    group_findings,
    missing_topic_findings,
    partition_findings,
    reader_findings,
)
from odradek.node.cli.group_lag import group_lags
from odradek.node.cli.group_queries import SHARE, GroupDescription, GroupQueries
from odradek.node.cli.group_texts import EVENT_TEXTS, PROGRESS_TEXTS, text_of
from odradek.node.cli.listener_problems import listener_findings, listener_problems
from odradek.node.cli.offsets import ids_of
from odradek.node.cli.output import Json, Output, Row, known, size_text
from odradek.node.cli.parameters import moment_text
from odradek.node.cli.partition_facts import collect_partition_views
from odradek.node.cli.storage_problems import storage_findings_of


def finding_rows(findings: Iterable[Finding]) -> list[Row]:
    """Findings for JSON, without duplicates."""
    unique = dict.fromkeys(findings)
    return [{"about": f.about, "finding": f.what, "advice": f.advice} for f in unique]


def print_findings(findings: Iterable[Finding], *, otherwise: str = "") -> None:
    """Each finding once, for however many partitions, and below it what to do."""
    unique = dict.fromkeys((finding.what, finding.advice) for finding in findings)
    if not unique and otherwise:
        click.echo(otherwise)
    for what, advice in unique:
        click.echo(f"- {what}")
        if advice:
            click.echo(click.style(f"  {advice}", dim=True))


def findings_of(
    client: ClusterClient, queries: GroupQueries, group: GroupDescription
) -> list[Finding]:
    """The findings about a group and about the partitions that it reads."""
    partition_ids = set(group.commits())
    for member in group.explained.members:
        partition_ids.update(ids_of([*member.owned, *member.to_revoke]))
    queries.fetch_metadata(group.topics())
    existing = {topic for topic, _ in queries.partitions}
    if group.explained.group_type == SHARE:
        # Its members may acquire records of any partition that they subscribe to.
        partition_ids |= set(queries.partitions)
    views = collect_partition_views(client, queries, partition_ids, group.now_ms)
    clients = {(member.client_id, member.client_host) for member in group.explained.members}
    brokers = {group.coordinator, *(view.leader for view in views.values())} - {-1}
    return [
        *group_findings(group.explained, group.now_ms),
        *missing_topic_findings(topic for topic in group.explained.topics if topic not in existing),
        *storage_findings_of(views.values()),
        *listener_findings(listener_problems(client, sorted(brokers))),
        *(finding for view in views.values() for finding in partition_findings(view, clients)),
        *reader_findings(group.explained, views, group.now_ms),
    ]


def _member_rows(group: GroupDescription) -> list[dict[str, Json]]:
    return [
        {
            "member": member.member_id,
            "instance": member.instance_id,
            "client": member.client_id,
            "host": member.client_host,
            "state": text_of(PROGRESS_TEXTS, member.state),
            "joined_ms": known(member.join_ms),
            "synced_ms": known(member.sync_ms),
            "gave_up_ms": known(member.revoke_ms),
            "owns": [f"{topic}-{index}" for topic, index in ids_of(member.owned)],
        }
        for member in group.explained.members
    ]


def _event_rows(group: GroupDescription) -> list[dict[str, Json]]:
    return [
        {
            "time": moment_text(event.at),
            "event": text_of(EVENT_TEXTS, event.kind),
            "member": event.member_id or None,
            "reason": event.reason or None,
        }
        for event in group.explained.events
    ]


def _lag_text(lag: Mapping[str, Json]) -> str:
    """The lag in words, and how it was counted."""
    size, seconds = lag["bytes"], lag["seconds"]
    if lag["unknown_partitions"]:
        return f"not known: no leader answers for {lag['unknown_partitions']} partitions"
    text = f"{lag['lag']} records"
    if isinstance(size, int):
        text += f", {size_text(size)}"
    if isinstance(seconds, int | float):
        text += f", {duration_text(int(seconds * 1000))}"
    if lag["uncommitted_partitions"]:
        text += (
            f" (nothing is committed in {lag['uncommitted_partitions']} partitions: counted from"
            " the start of the log)"
        )
    return text


@click.command("explain", short_help="Say why a group does not progress, and its events.")
@click.argument("name", shell_complete=complete_group, metavar="GROUP")
@with_client
def explain(name: str, client: ClusterClient, output: Output) -> None:
    """Say the state of a group, why it does not progress, and its recent events."""
    queries = GroupQueries(client)
    [group] = queries.existing_groups([name], with_events=True)
    findings = findings_of(client, queries, group)
    lag = group_lags(queries, [group])[name]
    explained = group.explained
    heading: dict[str, Json] = {
        "group": name,
        "state": explained.group_state,
        "type": explained.group_type,
        "protocol": explained.protocol or None,
        "epoch": known(explained.epoch),
        "coordinator": group.coordinator,
        "topics": group.topics(),
        "ephemeral": duration_text(explained.ttl_ms) if explained.ttl_ms >= 0 else None,
    }
    members, events = _member_rows(group), _event_rows(group)
    if output.is_json:
        output.document(
            {
                **heading,
                "ttl_ms": known(explained.ttl_ms),
                **lag,
                "findings": finding_rows(findings),
                "members": members,
                "events": events,
            }
        )
        return
    heading["lag"] = _lag_text(lag)
    output.facts({key: value for key, value in heading.items() if value is not None})
    click.echo()
    print_findings(findings, otherwise="No problems found.")
    if members:
        click.echo()
        columns = ["member", "client", "host", "state", "joined_ms", "synced_ms", "gave_up_ms"]
        output.rows(members, [c for c in columns if any(row[c] is not None for row in members)])
    if events:
        click.echo()
        output.rows(events)
