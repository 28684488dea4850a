"""`odradek elect`: elections of partition leaders (KIP-460).

A preferred leader is the first replica, and is elected if it is in sync. An unclean election is for
partitions without a leader: a replica that is not in sync leads then, and what only others have is
lost. A cluster elects preferred leaders by itself with auto.leader.rebalance.enable.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from odradek.node.cli.cluster_client import ClusterClient, error_text, with_client
from odradek.node.cli.completion import complete_topic
from odradek.node.cli.offsets import by_id
from odradek.node.cli.output import Output, Row, first_names, known
from odradek.node.cli.parameters import TopicSelection, topic_selection
from odradek.node.cli.reassignment import elect_leaders
from odradek.node.cli.replica_placement import describe_partitions
from odradek.node.cli.topic import selected_partitions
from odradek.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from odradek.node.cli.offsets import PartitionId
    from odradek.protocol.messages.metadata import MetadataResponsePartition
    from odradek.protocol.messages.partitions import DetailedPartitionResult

NO_LEADER: Final = -1
LEARNED_S: Final = 3.0
"""How long to wait until the broker that is asked knows of the elections."""
POLL_S: Final = 0.05

Partitions = Mapping["PartitionId", "MetadataResponsePartition"]


@click.command()
@click.argument(
    "selections",
    nargs=-1,
    type=topic_selection,
    metavar="[TOPIC[:0,1]]...",
    shell_complete=complete_topic,
)
@click.option("--all-topics", is_flag=True, help="All partitions that need an election.")
@click.option(
    "--unclean",
    is_flag=True,
    help="Elect leaders where there are none, of replicas that are not in sync. Records may be"
    " lost.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask before an unclean election.")
@with_client
def elect(
    client: ClusterClient,
    output: Output,
    selections: tuple[TopicSelection, ...],
    all_topics: bool,
    unclean: bool,
    yes: bool,
) -> None:
    """Elect the preferred leaders of partitions.

    That is the first replica of each, if it is in sync. Exits with 1 if a partition could not get
    its leader.

    \b
    odradek elect orders:0,3
    odradek elect --all-topics
    odradek elect orders --unclean
    """
    if all_topics == bool(selections):
        raise click.UsageError("Name topics, or give --all-topics.")
    names = None
    if not all_topics:
        names = list(dict.fromkeys(selected_partitions(client, selections)))
    before = describe_partitions(client, [each.topic for each in selections])
    if unclean and not yes:
        client.confirm(_question([*before] if names is None else names, before))
    results = elect_leaders(client, names, unclean=unclean)
    elected = {name for name, result in results.items() if not result.error_code}
    after = _known_leaders(client, elected, unclean=unclean)
    rows: list[Row] = [
        {
            "topic": name[0],
            "partition": name[1],
            "before": known(before[name].leader_id) if name in before else None,
            "leader": after.get(name, _leader(before, name)),
            "result": _result_text(result),
        }
        for name, result in sorted(results.items())
    ]
    output.rows(rows, empty="No partition needs an election.")
    failed = [f"{name[0]}-{name[1]}" for name, result in results.items() if _has_failed(result)]
    if failed:
        raise click.ClickException(f"not elected: {first_names(sorted(failed))}")


def _question(names: list[PartitionId], before: Partitions) -> str:
    leaderless = [name for name in names if _leader(before, name) is None]
    shown = first_names(f"{topic}-{number}" for topic, number in leaderless)
    found = f"Without a leader: {shown}." if leaderless else "No partition is without a leader now."
    return f"{found} An unclean leader loses the records that it has not copied. Elect?"


def _leader(partitions: Partitions, name: PartitionId) -> int | None:
    return known(partitions[name].leader_id) if name in partitions else None


def _known_leaders(
    client: ClusterClient, elected: set[PartitionId], *, unclean: bool
) -> dict[PartitionId, int | None]:
    """The new leaders. The broker that answers may learn of them a moment later."""
    deadline = time.monotonic() + LEARNED_S
    while elected:
        found = by_id(client.metadata({topic for topic, _ in elected}).topics)
        is_known = all(
            name not in found
            or (
                found[name].leader_id != NO_LEADER
                and (unclean or found[name].leader_id == found[name].replica_nodes[0])
            )
            for name in elected
        )
        if is_known or time.monotonic() > deadline:
            return {name: _leader(found, name) for name in elected}
        time.sleep(POLL_S)
    return {}


def _has_failed(result: DetailedPartitionResult) -> bool:
    return result.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)


def _result_text(result: DetailedPartitionResult) -> str:
    if _has_failed(result):
        return error_text(result)
    return "not needed" if result.error_code else "elected"
