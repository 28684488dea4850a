"""`odradek group create`, `list` and `delete`.

A group exists from its first join or commit on; `create` sets its configs before that. The configs
stay when the group is empty or expires; `group delete` deletes them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import click

from odradek.cluster.metadata.group_settings import PROTOCOLS
from odradek.cluster.metadata.topic_names import CONSUMER_OFFSETS
from odradek.node.cli import configs as configs_of
from odradek.node.cli.cluster_client import (
    PAUSE_S,
    ClusterClient,
    error_text,
    raise_on_error,
    raise_refusals,
    with_client,
)
from odradek.node.cli.completion import complete_group
from odradek.node.cli.group_lag import NOTHING_READ, group_lags, remark, remark_columns
from odradek.node.cli.group_queries import GroupQueries, configured_groups, is_odradek_cluster
from odradek.node.cli.not_found import GROUP, refusal_text
from odradek.node.cli.output import Json, Output, Row
from odradek.node.cli.parameters import duration, pair
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.diagnostics import ExplainedGroup
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    MemberIdentity,
)
from odradek.protocol.messages.share import ShareGroupHeartbeatRequest
from odradek.protocol.messages.streams import StreamsGroupHeartbeatRequest
from odradek.protocol.types import Request

LEAVE: Final = -1
"""The member epoch of a heartbeat by which a member leaves."""
REASON: Final = "removed by odradek group delete --force"

# -- create ---------------------------------------------------------------------------------------


@click.command("create")
@click.argument("name")
@click.option(
    "--ephemeral/--no-ephemeral",
    "is_ephemeral",
    default=None,
    help="Delete it, with its offsets, after its last member has left.  [default: by the broker's"
    " group.ephemeral.patterns]",
)
@click.option(
    "--ttl",
    type=duration,
    metavar="DURATION",
    help="Time until it is deleted then, e.g. 10m. Makes it ephemeral.",
)
@click.option(
    "--protocol",
    "protocols",
    multiple=True,
    type=click.Choice(PROTOCOLS),
    help="A protocol by which members may join; can be repeated.  [default: all]",
)
@click.option("--config", "-c", "configs", multiple=True, type=pair, metavar="KEY=VALUE")
@click.option("--if-not-exists", is_flag=True, help="An existing group is not an error.")
@with_client
def create(
    name: str,
    is_ephemeral: bool | None,
    ttl: int | None,
    protocols: tuple[str, ...],
    configs: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """Configure a group before its first member joins.

    The configs stay when an ephemeral group expires; `group delete` deletes them.
    """
    if ttl is not None and is_ephemeral is False:
        raise click.UsageError("A group that is not ephemeral has no --ttl.")
    wanted = dict(configs)
    if ttl is not None:
        wanted["group.ttl.ms"] = str(ttl)
    if is_ephemeral or ttl is not None:
        wanted["group.ephemeral"] = "true"
    elif is_ephemeral is False or not wanted:
        wanted["group.ephemeral"] = "false"
    if protocols:
        wanted["group.protocol.allow"] = ",".join(dict.fromkeys(protocols))
    [group] = GroupQueries(client).groups([name])
    if not group.explained.error_code or name in configured_groups(client):
        if if_not_exists:
            output.done(f"Group {name} exists", {"group": name, "created": False})
            return
        raise click.ClickException(
            f"group {name} exists; change it with `odradek config set group {name} ...`"
        )
    _alter(client, name, wanted)
    output.done(
        f"Created {name}: {', '.join(f'{key}={value}' for key, value in wanted.items())}",
        {"group": name, "created": True, "configs": wanted},
    )


def _alter(client: ClusterClient, name: str, changes: Mapping[str, str | None]) -> None:
    [answer] = configs_of.alter(client, configs_of.GROUP, {name: changes})
    raise_on_error(answer, f"group {name}")


# -- list -----------------------------------------------------------------------------------------

STATES: Final = {
    "stable": "Stable",
    "empty": "Empty",
    "dead": "Dead",
    "preparing_rebalancing": "PreparingRebalance",
    "completing_rebalancing": "CompletingRebalance",
    "assigning": "Assigning",
    "reconciling": "Reconciling",
    "not_ready": "NotReady",
}
"""States of groups as options, and as Kafka spells them."""


@click.command("list", short_help="List the groups of the whole cluster.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(list(STATES)),
    help="Only groups in this state.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(PROTOCOLS),
    help="Only groups of this type.",
)
@with_client
def list_groups(
    states: tuple[str, ...], types: tuple[str, ...], client: ClusterClient, output: Output
) -> None:
    """List the groups of the whole cluster: state, type, members, topics, lag, coordinator.

    Of brokers other than Odradek's only state and type.
    """
    columns, refusals = ["group", "state", "type"], {}
    if is_odradek_cluster(client):
        queries = GroupQueries(client)
        rows = _explained_rows(client, queries)
        columns += ["members", "topics", "lag", "seconds", "coordinator"]
        if queries.leaderless_shard_count:
            refusals[CONSUMER_OFFSETS] = (
                f"{queries.leaderless_shard_count} partitions have no leader: the groups in them"
                " are not shown"
            )
    else:
        rows, refusals = _listed_rows(client)
    shown = [
        row
        for row in sorted(rows, key=lambda row: str(row["group"]))
        if (not states or row["state"] in {STATES[state] for state in states})
        and (not types or row["type"] in types)
    ]
    output.rows(shown, columns + remark_columns(shown), empty="No groups.")
    if remark(shown):
        output.hint(remark(shown))
    raise_refusals(refusals)


def _listed_rows(client: ClusterClient) -> tuple[list[Row], dict[str, str]]:
    """The groups that the brokers list by Kafka's own API, and the errors of brokers."""
    listed: dict[str, ListedGroup] = {}
    refusals: dict[str, str] = {}
    for broker_id in client.broker_ids:
        answer = client.ask_broker(broker_id, ListGroupsRequest())
        if answer.error_code:
            refusals[f"broker {broker_id}"] = error_text(answer)
        listed |= {group.group_id: group for group in answer.groups}
    rows: list[Row] = [
        {
            "group": name,
            "state": group.group_state,
            "type": group.group_type,
            "simple": not group.protocol_type,
        }
        for name, group in listed.items()
    ]
    return rows, refusals


def _explained_rows(client: ClusterClient, queries: GroupQueries) -> list[Row]:
    """The groups of all coordinators, and those that have configs and have not been used."""
    groups = queries.all_groups()
    configured = configured_groups(client)
    unused = configured - {group.name for group in groups}
    lags = group_lags(queries, groups)
    rows: list[Row] = [
        _row(
            group.name,
            group.coordinator,
            **lags.get(group.name, {}),
            state=group.explained.group_state,
            type=group.explained.group_type,
            members=len(group.explained.members),
            topics=group.topics(),
            simple=group.explained.epoch < 0 and not group.explained.members,
            ephemeral=group.explained.ttl_ms >= 0,
            configured=group.name in configured,
        )
        for group in groups
    ]
    rows += (
        _row(group.name, group.coordinator, configured=True) for group in queries.groups(unused)
    )
    return rows


def _row(name: str, coordinator: int, **known: Json) -> Row:
    """The row of a group; what is not given is as of a group that has not been used."""
    return {
        "group": name,
        "state": "Empty",
        "type": None,
        "members": 0,
        "topics": [],
        **NOTHING_READ,
        "coordinator": coordinator,
        "simple": False,
        "ephemeral": None,
        **known,
    }


# -- delete ---------------------------------------------------------------------------------------


@click.command(short_help="Delete empty groups with their offsets and configs.")
@click.argument("names", nargs=-1, required=True, shell_complete=complete_group, metavar="GROUP...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--force", "is_forced", is_flag=True, help="Remove their members first.")
@with_client
def delete(
    names: tuple[str, ...],
    yes: bool,
    is_forced: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """Delete empty groups with their committed offsets and their own configs.

    With --force also groups that have members, which are removed first. Consumers that still run
    rejoin and create the group again.
    """
    client.metadata()
    if not yes:
        client.confirm(f"Delete {', '.join(names)} and their offsets?")
    is_odradek = is_odradek_cluster(client)
    if is_forced and not is_odradek:
        raise click.ClickException("--force needs Odradek brokers")
    configured = configured_groups(client) if is_odradek else set()
    refusals: dict[str, str] = {}
    deleted: list[str] = []
    for name in dict.fromkeys(names):
        try:
            _delete(client, name, is_configured=name in configured, is_forced=is_forced)
            deleted.append(name)
        except click.ClickException as error:
            refusals[name] = error.message
    if deleted:
        output.done(f"Deleted {', '.join(deleted)}", {"deleted": deleted})
    raise_refusals(refusals)


def _delete(client: ClusterClient, name: str, *, is_configured: bool, is_forced: bool) -> None:
    """Delete a group with its offsets and its own configs; ClickException if that is refused."""
    request = DeleteGroupsRequest(groups_names=[name])
    deadline = time.monotonic() + client.timeout_s
    while True:
        if is_forced:
            [group] = GroupQueries(client).groups([name])
            remove_members(client, group.coordinator, group.explained)
        [result] = client.ask_coordinator(name, request, lambda answer: answer.results[0]).results
        has_members = result.error_code == ErrorCode.NON_EMPTY_GROUP
        if not (has_members and is_forced) or time.monotonic() > deadline:
            break
        time.sleep(PAUSE_S)
    if has_members and is_forced:
        hint = ": its consumers rejoin as soon as they are removed; stop them"
    elif has_members:
        hint = ": stop its consumers, or pass --force"
    else:
        hint = ""
    is_unknown = result.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    if result.error_code and not (is_unknown and is_configured):
        raise click.ClickException(refusal_text(client, GROUP, name, result) + hint)
    if is_configured:
        own = configs_of.own_configs(client, configs_of.GROUP, [name])
        _alter(client, name, dict.fromkeys(own[name]))


def remove_members(client: ClusterClient, coordinator: int, group: ExplainedGroup) -> None:
    """Remove every member as if it had left: by the last heartbeat of its protocol, or LeaveGroup.

    The next heartbeat of a member is refused, and a client that still runs rejoins. Errors are
    ignored: the group cannot be deleted while it has members.
    """
    for member in group.members:
        request: Request[Any]
        match group.group_type:
            case "consumer":
                request = ConsumerGroupHeartbeatRequest(
                    group_id=group.group_id,
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    member_epoch=LEAVE,
                )
            case "share":
                request = ShareGroupHeartbeatRequest(
                    group_id=group.group_id, member_id=member.member_id, member_epoch=LEAVE
                )
            case "streams":
                request = StreamsGroupHeartbeatRequest(
                    group_id=group.group_id,
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    member_epoch=LEAVE,
                )
            case _:
                identity = MemberIdentity(
                    member_id=member.member_id, group_instance_id=member.instance_id, reason=REASON
                )
                request = LeaveGroupRequest(group_id=group.group_id, members=[identity])
        client.ask_node(coordinator, request)
