"""`odradek group create`, and what `list` and `delete` are on Odradek's own brokers.

A group exists from the first join or commit on; to create one is to set its configs before. They
stay when the group is empty or expires, and are deleted by `group delete`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

import click

from odradek.cluster.metadata.group_settings import PROTOCOLS
from odradek.cluster.metadata.topic_names import CONSUMER_OFFSETS
from odradek.node.cli import configs as configs_of
from odradek.node.cli.cluster_client import COORDINATOR_ERRORS, PAUSE_S, ClusterClient
from odradek.node.cli.connection import ClusterConnection, with_connection
from odradek.node.cli.group_lag import lag_row, partition_lags, sum_lags
from odradek.node.cli.group_queries import GroupQueries, configured_groups
from odradek.node.cli.group_types import remove_members
from odradek.node.cli.output import Json, Output, Row, with_output
from odradek.node.cli.parameters import duration, pair
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import DeleteGroupsRequest

# -- create ---------------------------------------------------------------------------------------


@click.command("create")
@click.argument("name")
@click.option(
    "--ephemeral/--no-ephemeral",
    "is_ephemeral",
    default=None,
    help="Whether it goes, with its offsets, when its last member has gone.  [default: as the"
    " broker's group.ephemeral.patterns say]",
)
@click.option(
    "--ttl",
    type=duration,
    metavar="DURATION",
    help="How long it stays then, e.g. 10m. Makes it ephemeral.",
)
@click.option(
    "--protocol",
    "protocols",
    multiple=True,
    type=click.Choice(PROTOCOLS),
    help="By which members may join; may be given several times.  [default: all]",
)
@click.option("--config", "-c", "configs", multiple=True, type=pair, metavar="KEY=VALUE")
@click.option("--if-not-exists", is_flag=True, help="An existing group is not an error.")
@with_connection
@with_output
def create(
    name: str,
    is_ephemeral: bool | None,
    ttl: int | None,
    protocols: tuple[str, ...],
    configs: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    connection: ClusterConnection,
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
    with ClusterClient(connection) as client:
        [group] = GroupQueries(client).groups([name])
        if not group.told.error_code or name in configured_groups(client):
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
    if answer.error_code:
        message = answer.error_message or ErrorCode(answer.error_code).message
        raise click.ClickException(f"group {name}: {message}")


def _own_configs(client: ClusterClient, name: str) -> list[str]:
    """The keys that were set on a group."""
    [result] = configs_of.describe(client, configs_of.GROUP, [name])
    own = configs_of.GROUP_CONFIG
    return [config.name for config in result.configs if config.config_source == own]


# -- list -----------------------------------------------------------------------------------------


def print_groups(
    connection: ClusterConnection, output: Output, states: set[str], kinds: tuple[str, ...]
) -> None:
    """The groups of all coordinators, in one table; and those that were created and not yet used.

    Every coordinator is asked: any broker names them.
    """
    with ClusterClient(connection) as client:
        facts = GroupQueries(client)
        groups = facts.all_groups()
        configured = configured_groups(client)
        unused = configured - {group.name for group in groups}
        coordinators = {
            group.name: group.coordinator for group in (facts.groups(unused) if unused else ())
        }
        # A partition without a leader must not keep a list from being shown.
        lags = {
            row["group"]: row
            for row in sum_lags(
                map(lag_row, partition_lags(facts, groups, waits_for_leaders=False)), ("group",)
            )
        }
    rows = [
        _row(
            group.name,
            group.coordinator,
            {key: value for key, value in lags.get(group.name, {}).items() if key != "group"},
            state=group.told.group_state,
            type=group.told.group_type,
            members=len(group.told.members),
            topics=group.topics(),
            simple=group.told.epoch < 0 and not group.told.members,
            ephemeral=group.told.ttl_ms >= 0,
            configured=group.name in configured,
        )
        for group in groups
    ]
    rows += (_row(name, coordinators[name], {}, configured=True) for name in unused)
    shown = [
        row
        for row in sorted(rows, key=lambda row: str(row["group"]))
        if (not states or row["state"] in states) and (not kinds or row["type"] in kinds)
    ]
    columns = ["group", "state", "type", "members", "topics", "lag", "seconds", "coordinator"]
    output.rows(shown, columns, empty="No groups.")
    if facts.leaderless_shard_count:
        raise click.ClickException(
            f"{facts.leaderless_shard_count} partitions of {CONSUMER_OFFSETS} have no leader: the"
            " groups"
            " in them are not shown"
        )


def _row(name: str, coordinator: int, lag: Row, **known: Json) -> dict[str, Json]:
    """A group's line; what is not given is as of a group that nobody has used."""
    return {
        "group": name,
        "state": "Empty",
        "type": None,
        "members": 0,
        "topics": [],
        "lag": 0,
        "seconds": 0.0,
        "bytes": 0,
        "coordinator": coordinator,
        "simple": False,
        "ephemeral": None,
        **lag,
        **known,
    }


# -- delete ---------------------------------------------------------------------------------------


def delete_groups(
    connection: ClusterConnection, output: Output, names: Iterable[str], *, is_forced: bool
) -> None:
    """Delete groups with their offsets and their own configs, putting their members out first if
    it `is_forced`."""
    refusals: dict[str, str] = {}
    deleted: list[str] = []
    with ClusterClient(connection) as client:
        facts = GroupQueries(client)
        configured = configured_groups(client)
        for name in dict.fromkeys(names):
            complaint = _delete(facts, client, name, is_forced=is_forced)
            is_only_configured = complaint is not None and complaint[0] == _UNKNOWN
            if name in configured and (complaint is None or is_only_configured):
                keys = _own_configs(client, name)
                _alter(client, name, dict.fromkeys(keys))
                complaint = None
            if complaint is None:
                deleted.append(name)
            else:
                refusals[name] = complaint[1]
    if deleted:
        output.done(f"Deleted {', '.join(deleted)}", {"deleted": deleted})
    if refusals:
        raise click.ClickException("; ".join(f"{name}: {why}" for name, why in refusals.items()))


_UNKNOWN: Final = ErrorCode.GROUP_ID_NOT_FOUND


def _delete(
    facts: GroupQueries, client: ClusterClient, name: str, *, is_forced: bool
) -> tuple[int, str] | None:
    """Why the group was not deleted, as (error code, sentence); None if it was."""
    deadline = time.monotonic() + client.timeout_s
    while True:
        [group] = facts.groups([name])
        if is_forced:
            remove_members(client, group.coordinator, group.told)
        code, message = delete_at_coordinator(client, name)
        may_try_again = code in COORDINATOR_ERRORS or (
            is_forced and code == ErrorCode.NON_EMPTY_GROUP
        )
        if not code:
            return None
        if not may_try_again or time.monotonic() > deadline:
            if code == ErrorCode.NON_EMPTY_GROUP:
                hint = (
                    "its consumers rejoin as soon as they are removed; stop them"
                    if is_forced
                    else "stop its consumers, or pass --force"
                )
                message = f"{message.rstrip('.')}: {hint}"
            return code, message
        time.sleep(PAUSE_S)


def delete_at_coordinator(client: ClusterClient, name: str) -> tuple[int, str]:
    """Delete an empty group; the error, as (code, message), or NONE."""
    answer = client.ask_coordinator(
        name,
        DeleteGroupsRequest(groups_names=[name]),
        lambda told: told.results[0].error_code,
    )
    if answer is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, "its coordinator does not answer"
    [result] = answer.results
    message = result.error_message or ErrorCode(result.error_code).message
    return result.error_code, message if result.error_code else ""
