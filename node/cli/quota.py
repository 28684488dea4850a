"""`odradek quota`: how much users, client ids and IP addresses may use (KIP-546, KIP-612)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import click

from odradek.cluster.metadata.client_quotas import (
    CLIENT_QUOTA_KEYS,
    QuotaEntity,
    QuotaEntityType,
    QuotaKey,
    quota_entity,
)
from odradek.node.cli.cluster_client import ClusterClient, raise_on_error, with_client
from odradek.node.cli.output import Output, Row
from odradek.node.cli.parameters import pair, size
from odradek.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    ComponentData,
    DescribeClientQuotasEntryData,
    DescribeClientQuotasRequest,
    EntityData,
    OpData,
)

R = TypeVar("R")

DEFAULT_NAME: Final = "<default>"
"""What the default is called in the output, as by Kafka's tools."""
_EXACT, _DEFAULT = 0, 1
_BYTE_RATES: Final = (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE)
_KEYS: Final = (*CLIENT_QUOTA_KEYS, QuotaKey.CONNECTION_CREATION_RATE)


def _named(
    _context: click.Context, parameter: click.Parameter, value: str | bool | None
) -> str | bool | None:
    if value == "":
        raise click.BadParameter("The name must not be empty.", param=parameter)
    return value


def entity_options(command: Callable[..., R]) -> Callable[..., R]:
    """The options that name an entity: a user, a client id, both, or an IP address."""
    for name, what in (("ip", "IP address or host"), ("client-id", "client id"), ("user", "user")):
        field = name.replace("-", "_")
        command = click.option(
            f"--default-{name}",
            f"default_{field}",
            is_flag=True,
            help=f"The default of every {what} without a quota of its own.",
        )(command)
        command = click.option(
            f"--{name}", field, metavar="NAME", callback=_named, help=f"The {what}."
        )(command)
    return command


@click.group()
def quota() -> None:
    """List, set and remove client quotas.

    They limit users, client ids and addresses. Each broker counts for itself: a rate of 1 MB/s is
    1 MB/s of each broker. Of several quotas the most specific holds: of a user with a client id, of
    a user, of a client id.
    """


@quota.command("list")
@entity_options
@with_client
def list_quotas(client: ClusterClient, output: Output, **names: str | bool | None) -> None:
    """List quotas, all or those of an entity that have the given parts."""
    components = [
        ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in _entity(names)
    ]
    rows: list[Row] = []
    for entry in sorted(_described(client, components, strict=False), key=_order):
        parts = {part.entity_type: part.entity_name for part in entry.entity}
        shown = {
            kind: (parts[kind] if parts[kind] is not None else DEFAULT_NAME)
            if kind in parts
            else None
            for kind in (QuotaEntityType.USER, QuotaEntityType.CLIENT_ID, QuotaEntityType.IP)
        }
        rows.extend(
            {
                "user": shown[QuotaEntityType.USER],
                "client_id": shown[QuotaEntityType.CLIENT_ID],
                "ip": shown[QuotaEntityType.IP],
                "quota": value.key,
                "value": int(value.value) if value.value.is_integer() else value.value,
            }
            for value in sorted(entry.values, key=lambda value: value.key)
        )
    columns = ("user", "client_id", "ip", "quota", "value")
    output.rows(rows, columns, empty="There are no such quotas.")


@quota.command("set", short_help="Set quotas of an entity.")
@entity_options
@click.argument("quotas", nargs=-1, required=True, metavar="QUOTA=VALUE...")
@click.option("--dry-run", is_flag=True, help="Only check whether the quotas can be set.")
@with_client
def set_quotas(
    client: ClusterClient,
    output: Output,
    quotas: tuple[str, ...],
    dry_run: bool,
    **names: str | bool | None,
) -> None:
    """Set quotas of a user, a client id, a user with a client id, or an address.

    \b
    producer_byte_rate, consumer_byte_rate   bytes per second, as in 1MiB
    request_percentage                       100 is the time of one thread
    controller_mutation_rate                 partitions created or deleted per second
    connection_creation_rate                 connections per second, of an address
    """
    entity = _required_entity(names)
    changes = []
    for text in quotas:
        key, value = pair(text)
        changes.append(OpData(key=key, value=_value(key, value)))
    _alter(client, entity, changes, is_dry_run=dry_run)
    done = "could be set" if dry_run else "set"
    shown = {change.key: change.value for change in changes}
    output.done(
        f"{', '.join(shown)} {done} for {_text(entity)}",
        {"entity": dict(entity), "quotas": shown, "dry_run": dry_run},
    )


@quota.command(short_help="Remove quotas of an entity.")
@entity_options
@click.argument("quotas", nargs=-1, metavar="[QUOTA]...")
@click.option("--dry-run", is_flag=True, help="Only check whether the quotas can be removed.")
@with_client
def remove(
    client: ClusterClient,
    output: Output,
    quotas: tuple[str, ...],
    dry_run: bool,
    **names: str | bool | None,
) -> None:
    """Remove quotas of an entity; without a QUOTA all that it has itself."""
    entity = _required_entity(names)
    components = [
        ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in entity
    ]
    has = [
        value.key for entry in _described(client, components, strict=True) for value in entry.values
    ]
    missing = sorted(set(quotas).difference(has))
    if missing or not has:
        what = ", ".join(missing) if missing else "quota"
        raise click.ClickException(f"{_text(entity)} has no {what}")
    removed = list(dict.fromkeys(quotas)) or has
    _alter(client, entity, [OpData(key=key, remove=True) for key in removed], is_dry_run=dry_run)
    done = "could be removed" if dry_run else "removed"
    output.done(
        f"{', '.join(removed)} {done} for {_text(entity)}",
        {"entity": dict(entity), "quotas": removed, "dry_run": dry_run},
    )


def _entity(names: dict[str, str | bool | None]) -> QuotaEntity:
    """The components that the options name; usage error if they exclude each other."""
    components: list[tuple[str, str | None]] = []
    for kind in QuotaEntityType:
        field = kind.replace("-", "_")
        name, is_default = names[field], names[f"default_{field}"]
        if name is not None and is_default:
            raise click.UsageError(f"--{kind} and --default-{kind} exclude each other.")
        if name is not None or is_default:
            components.append((str(kind), None if name is None else str(name)))
    kinds = {kind for kind, _ in components}
    if QuotaEntityType.IP in kinds and len(kinds) > 1:
        raise click.UsageError("An address has quotas of its own, without a user or client id.")
    return quota_entity(components)


def _required_entity(names: dict[str, str | bool | None]) -> QuotaEntity:
    entity = _entity(names)
    if not entity:
        raise click.UsageError(
            "Name a --user, a --client-id or an --ip, or one of their defaults, as in"
            " --default-user."
        )
    return entity


def _value(key: str, text: str) -> float:
    if key not in set(_KEYS):
        raise click.UsageError(f"{key} is no quota. There are: {', '.join(_KEYS)}.")
    if key in _BYTE_RATES:
        return float(size(text))
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(f"{key} must be a number, and is {text!r}.") from None


def _described(
    client: ClusterClient, components: list[ComponentData], *, strict: bool
) -> list[DescribeClientQuotasEntryData]:
    answer = client.ask(DescribeClientQuotasRequest(components=components, strict=strict))
    raise_on_error(answer, "quotas")
    return answer.entries or []


def _alter(
    client: ClusterClient, entity: QuotaEntity, changes: list[OpData], *, is_dry_run: bool
) -> None:
    components = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    request = AlterClientQuotasRequest(
        entries=[AlterClientQuotasRequestEntryData(entity=components, ops=changes)],
        validate_only=is_dry_run,
    )
    for entry in client.ask(request).entries:
        raise_on_error(entry, _text(entity))


def _text(entity: QuotaEntity) -> str:
    """The entity for people: `user ann, client-id app`."""
    parts = sorted(entity, reverse=True)
    return ", ".join(f"{kind} {DEFAULT_NAME if name is None else name}" for kind, name in parts)


def _order(entry: DescribeClientQuotasEntryData) -> list[tuple[str, bool, str]]:
    return [
        (part.entity_type, part.entity_name is None, part.entity_name or "")
        for part in sorted(entry.entity, key=lambda part: part.entity_type, reverse=True)
    ]
