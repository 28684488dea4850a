"""`odradek group`: consumer groups, how far behind they are, and moving them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from odradek.cluster.metadata.group_settings import PROTOCOLS
from odradek.node.blocking_client import NotABrokerError
from odradek.node.cli import offsets, share_group, streams_group
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.completion import complete_group
from odradek.node.cli.connection import (
    ClusterConnection,
    collect_results,
    raise_refusals,
    reason,
    single_result,
    with_connection,
)
from odradek.node.cli.dead_letters import dead_letters
from odradek.node.cli.group_admin import create, delete_groups, print_groups
from odradek.node.cli.group_explain import explain
from odradek.node.cli.group_lag import add_lag_columns, lag, wait
from odradek.node.cli.group_queries import (
    configured_groups,
    configured_only_message,
    is_odradek_cluster,
)
from odradek.node.cli.offsets import PartitionId
from odradek.node.cli.output import Json, Output, Row, with_output
from odradek.node.cli.parameters import TopicSelection, moment, topic_selection
from odradek.node.cli.rewind import rewind, snapshot, undo
from odradek.protocol.errors import ProtocolError
from odradek.protocol.messages.groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import (
        AdminClient,
        ConsumerGroupDescription,
        MemberDescription,
    )

UNKNOWN = "Unknown"
OFFSET_INVALID = -1001  # librdkafka's "nothing committed"
_MUST_BE_STOPPED = "Are its consumers stopped? `odradek group rewind` moves it while they run."


@click.group()
def group() -> None:
    """List, describe, rewind and delete consumer groups."""


group.add_command(rewind)
group.add_command(undo)
group.add_command(snapshot)
group.add_command(create)
group.add_command(explain)
group.add_command(lag)
group.add_command(wait)
group.add_command(dead_letters)


@group.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(
        [
            "stable",
            "empty",
            "dead",
            "preparing_rebalancing",
            "completing_rebalancing",
            "assigning",
            "reconciling",
            "not_ready",
        ]
    ),
    help="Only groups in this state.",
)
@click.option(
    "--type",
    "kinds",
    multiple=True,
    type=click.Choice(PROTOCOLS),
    help="Only groups of this type.",
)
@with_connection
@with_output
def list_groups(
    states: tuple[str, ...], kinds: tuple[str, ...], connection: ClusterConnection, output: Output
) -> None:
    """List the groups of the whole cluster: state, type, members, topics, lag, coordinator.

    Of brokers other than Odradek's only state and type.
    """
    wanted = {_state_name(state) for state in states}
    connection.check_reachable()
    if is_odradek_cluster(connection):
        print_groups(connection, output, wanted, kinds)
        return
    admin = connection.admin()
    listing = admin.list_consumer_groups(request_timeout=connection.timeout_s).result()
    names = {found.group_id: _state_name(found.state.name) for found in listing.valid or []}
    if UNKNOWN in names.values():
        names |= _kip_848_states(admin, connection)
    rows: list[Row] = [
        {
            "group": found.group_id,
            "state": names[found.group_id],
            "type": found.type.name.lower(),
            "simple": found.is_simple_consumer_group,
        }
        for found in sorted(listing.valid or [], key=lambda found: found.group_id)
        if (not wanted or names[found.group_id] in wanted)
        and (not kinds or found.type.name.lower() in kinds)
    ]
    output.rows(rows, ["group", "state", "type"], empty="No consumer groups.")
    if listing.errors:
        raise click.ClickException("; ".join(reason(error.args[0]) for error in listing.errors))


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_group, metavar="GROUP...")
@click.option("--members", "show_members", is_flag=True, help="Show the members instead.")
@with_connection
@with_output
def describe(
    names: tuple[str, ...], show_members: bool, connection: ClusterConnection, output: Output
) -> None:
    """Show state, members, committed offsets and lag."""
    admin = connection.admin()
    streams = streams_group.describe_streams_groups(admin, names, connection)
    documents = [
        streams_group.document(admin, found, node, committed_offsets(admin, name, connection))
        for name, (node, found) in streams.items()
    ]
    shares = share_group.describe_share_groups(admin, names, connection)
    documents += [share_group.document(admin, found) for found in shares.values()]
    others = [name for name in names if name not in streams and name not in shares]
    refusals: dict[str, KafkaError] = {}
    if others:
        futures = admin.describe_consumer_groups(others, request_timeout=connection.timeout_s)
        answers, refusals = collect_results(futures)
        documents += [_document(admin, found, connection) for found in answers.values()]
    has_more = add_lag_columns(connection, documents)
    if output.is_json:
        output.document(documents)
    for document in documents if not output.is_json else []:
        members, lag = document["members"], document["offsets"]
        assert isinstance(members, list)
        assert isinstance(lag, list)
        heading = {name: value for name, value in document.items() if not isinstance(value, list)}
        if document is not documents[0]:
            click.echo()
        output.facts({**heading, "members": len(members)})
        click.echo()
        if show_members:
            columns = ["member", "instance", "client", "host", "assigned"]
            has_targets = any(isinstance(row, dict) and row["target"] for row in members)
            output.rows(
                members, [*columns, "target"] if has_targets else columns, empty="No members."
            )
        else:
            output.rows(
                lag,
                [
                    *("topic", "partition", "committed", "end_offset", "lag"),
                    *(("bytes", "seconds") if has_more else ()),
                    *("client", "host"),
                ],
                empty="Nothing committed and nothing assigned.",
            )
    raise_refusals(refusals)


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_group, metavar="GROUP...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--force", "is_forced", is_flag=True, help="Put their members out first.")
@with_connection
@with_output
def delete(
    names: tuple[str, ...],
    yes: bool,
    is_forced: bool,
    connection: ClusterConnection,
    output: Output,
) -> None:
    """Delete empty groups with their committed offsets and their own configs.

    With --force also groups that have members: those are put out first. Consumers that still run
    come back, and begin a new group.
    """
    connection.check_reachable()
    if not yes:
        click.confirm(f"Delete {', '.join(names)} and their offsets?", abort=True, err=True)
    if is_odradek_cluster(connection):
        delete_groups(connection, output, names, is_forced=is_forced)
        return
    if is_forced:
        raise click.ClickException("--force is for Odradek's own brokers, over PLAINTEXT")
    admin = connection.admin()
    futures = admin.delete_consumer_groups(list(names), request_timeout=connection.timeout_s)
    answers, refusals = collect_results(futures)
    deleted = list(answers)
    if deleted:
        output.done(f"Deleted {', '.join(deleted)}", {"deleted": deleted})
    raise_refusals(refusals)


@group.command("reset-offsets")
@click.argument("name", shell_complete=complete_group, metavar="GROUP")
@click.option(
    "--topic",
    "-t",
    "selections",
    type=topic_selection,
    multiple=True,
    help="What to move.  [default: every partition with a committed offset]",
)
@click.option("--to", "end", type=click.Choice(["earliest", "latest"]), help="Either end.")
@click.option("--to-offset", type=click.IntRange(min=0), help="This offset.")
@click.option("--to-time", type=moment, help="The first record at or after this time.")
@click.option("--shift-by", type=int, metavar="N", help="N records forward, or back with -N.")
@click.option("--dry-run", is_flag=True, help="Show what would change, change nothing.")
@with_connection
@with_output
def reset_offsets(
    name: str,
    selections: tuple[TopicSelection, ...],
    end: str | None,
    to_offset: int | None,
    to_time: int | None,
    shift_by: int | None,
    dry_run: bool,
    connection: ClusterConnection,
    output: Output,
) -> None:
    """Move a group to other offsets. Its consumers must be stopped.

    Offsets outside of a partition become its nearest end.
    """
    if sum(choice is not None for choice in (end, to_offset, to_time, shift_by)) != 1:
        raise click.UsageError("Give exactly one of --to, --to-offset, --to-time and --shift-by.")
    admin = connection.admin()
    shares = share_group.describe_share_groups(admin, [name], connection)
    if name in shares:
        committed = shares[name].starts()
    else:
        committed = committed_offsets(admin, name, connection)
    if selections:
        metadata = admin.list_topics(timeout=connection.timeout_s)
        known = offsets.partitions_of(metadata, [selection.topic for selection in selections])
        partition_ids = [
            partition_id for partition_id in known if any(s.has(*partition_id) for s in selections)
        ]
    else:
        partition_ids = sorted(committed)
    if not partition_ids:
        raise click.ClickException(
            f"group {name!r} has no committed offsets; name what to move with --topic"
        )
    starts = offsets.earliest_offsets(admin, partition_ids)
    ends = offsets.latest_offsets(admin, partition_ids)
    targets = _targets(
        admin,
        partition_ids,
        end=end,
        to_offset=to_offset,
        to_time=to_time,
        shift_by=shift_by,
        committed=committed,
        ends=ends,
        starts=starts,
    )
    rows: list[Row] = [
        {
            "topic": partition_id[0],
            "partition": partition_id[1],
            "committed": committed.get(partition_id),
            "new_offset": targets[partition_id],
            "end_offset": ends[partition_id],
            "lag": ends[partition_id] - targets[partition_id],
        }
        for partition_id in partition_ids
    ]
    if not dry_run and name in shares:
        share_group.alter_start_offsets(shares[name], targets, connection)
    elif not dry_run:
        _commit(admin, name, targets, connection)
    output.rows(rows, ["topic", "partition", "committed", "new_offset", "end_offset", "lag"])
    if dry_run:
        output.hint("Nothing was changed (--dry-run).")


def committed_offsets(
    admin: AdminClient, name: str, connection: ClusterConnection
) -> dict[PartitionId, int]:
    """Every committed offset of a group; empty for a group that never committed."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    futures = admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(name)], request_timeout=connection.timeout_s
    )
    found = single_result(futures, f"group {name!r}")
    return {
        (partition_id.topic, partition_id.partition): partition_id.offset
        for partition_id in found.topic_partitions or []
        if partition_id.offset != OFFSET_INVALID and partition_id.error is None
    }


def _targets(
    admin: AdminClient,
    partition_ids: list[PartitionId],
    *,
    end: str | None,
    to_offset: int | None,
    to_time: int | None,
    shift_by: int | None,
    committed: dict[PartitionId, int],
    starts: dict[PartitionId, int],
    ends: dict[PartitionId, int],
) -> dict[PartitionId, int]:
    if end is not None:
        return starts if end == "earliest" else ends
    if to_time is not None:
        found = offsets.offsets_at(admin, partition_ids, to_time)
        # No record that late: everything is older, so the group goes to the end.
        return {
            partition_id: found[partition_id] if found[partition_id] >= 0 else ends[partition_id]
            for partition_id in partition_ids
        }
    if to_offset is not None:
        wanted = dict.fromkeys(partition_ids, to_offset)
    else:
        assert shift_by is not None
        missing = [partition_id for partition_id in partition_ids if partition_id not in committed]
        if missing:
            raise click.ClickException(
                f"nothing is committed for {missing[0][0]}-{missing[0][1]}: "
                "--shift-by needs an offset to start from"
            )
        wanted = {
            partition_id: committed[partition_id] + shift_by for partition_id in partition_ids
        }
    return {
        partition_id: min(max(wanted[partition_id], starts[partition_id]), ends[partition_id])
        for partition_id in partition_ids
    }


def _commit(
    admin: AdminClient, name: str, targets: dict[PartitionId, int], connection: ClusterConnection
) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in targets.items()]
    futures = admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(name, wanted)], request_timeout=connection.timeout_s
    )
    answers, refusals = collect_results(futures)
    for error in refusals.values():
        raise click.ClickException(f"group {name!r}: {reason(error)}. {_MUST_BE_STOPPED}")
    for answer in answers.values():
        refused = [
            partition_id
            for partition_id in answer.topic_partitions or []
            if partition_id.error is not None
        ]
        if refused:
            first = refused[0]
            raise click.ClickException(
                f"{len(refused)} of {len(targets)} offsets were refused, "
                f"{first.topic}-{first.partition}: {reason(first.error)}. {_MUST_BE_STOPPED}"
            )


def _check_known(
    name: str,
    found: ConsumerGroupDescription,
    partition_ids: list[PartitionId],
    connection: ClusterConnection,
) -> None:
    """Kafka answers for a group that never was with a dead, empty one."""
    if not found.members and not partition_ids and found.state.name in ("DEAD", "UNKNOWN"):
        if is_odradek_cluster(connection):
            with ClusterClient(connection) as client:
                if name in configured_groups(client):
                    raise click.ClickException(configured_only_message(name))
        raise click.ClickException(f"there is no group {name!r}")


def _document(
    admin: AdminClient, found: ConsumerGroupDescription, connection: ClusterConnection
) -> dict[str, Json]:
    owners = {
        (partition_id.topic, partition_id.partition): member
        for member in found.members
        for partition_id in member.assignment.topic_partitions
    }
    committed = committed_offsets(admin, found.group_id, connection)
    partition_ids = sorted({*owners, *committed})
    _check_known(found.group_id, found, partition_ids, connection)
    ends = offsets.known_ends(admin, partition_ids)
    lag: list[Row] = []
    for partition_id in partition_ids:
        owner = owners.get(partition_id)
        offset = committed.get(partition_id)
        end = ends[partition_id]
        lag.append(
            {
                "topic": partition_id[0],
                "partition": partition_id[1],
                "committed": offset,
                "end_offset": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "member": owner.member_id if owner else None,
                "client": owner.client_id if owner else None,
                "host": owner.host if owner else None,
            }
        )
    members: list[Row] = [
        {
            "member": member.member_id,
            "instance": member.group_instance_id,
            "client": member.client_id,
            "host": member.host,
            "assigned": [
                f"{partition_id.topic}-{partition_id.partition}"
                for partition_id in member.assignment.topic_partitions
            ],
            "target": _target(member),
        }
        for member in found.members
    ]
    state = _state_name(found.state.name)
    if state == UNKNOWN:
        state = _kip_848_states(admin, connection).get(found.group_id, state)
    behind = [value for row in lag if isinstance(value := row["lag"], int)]
    return {
        "group": found.group_id,
        "state": state,
        "type": found.type.name.lower(),
        "assignor": found.partition_assignor or None,
        "coordinator": found.coordinator.id if found.coordinator else None,
        "total_lag": sum(behind) if behind or not lag else None,
        "members": members,
        "offsets": lag,
    }


def _target(member: MemberDescription) -> list[Json]:
    """What a member of the consumer protocol shall own, while that is not what it owns."""
    target = getattr(member, "target_assignment", None)
    if target is None:
        return []
    owned, wanted = (
        sorted(
            (partition_id.topic, partition_id.partition)
            for partition_id in assignment.topic_partitions
        )
        for assignment in (member.assignment, target)
    )
    return [] if owned == wanted else [f"{topic}-{partition}" for topic, partition in wanted]


def _kip_848_states(admin: AdminClient, connection: ClusterConnection) -> dict[str, str]:
    """The states of consumer groups, asked for by hand: librdkafka knows no Assigning and no
    Reconciling. Empty where that cannot be had, as over TLS."""
    states: dict[str, str] = {}
    request = ListGroupsRequest(types_filter=["consumer"])
    for broker in admin.list_topics(timeout=connection.timeout_s).brokers.values():
        try:
            with connection.connect(str(broker.host), broker.port) as asker:
                groups = asker.ask(request, ListGroupsResponse).groups
        except (OSError, NotABrokerError, ProtocolError):
            continue
        states |= {group.group_id: group.group_state for group in groups}
    return states


def _state_name(name: str) -> str:
    """`PREPARING_REBALANCING` -> `PreparingRebalance`, Kafka's own spelling of group states."""
    return "".join(word.capitalize() for word in name.split("_")).replace(
        "Rebalancing", "Rebalance"
    )
