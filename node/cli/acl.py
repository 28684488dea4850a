"""`odradek acl`: access control lists, on Odradek and on any Kafka that has an authorizer.

A binding allows or denies a principal from a host an operation on the resources of a pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, TypeVar

import click

from odradek.cluster.metadata.acls import (
    ANY,
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from odradek.node.cli.cluster_client import (
    ClusterClient,
    error_text,
    raise_on_error,
    raise_refusals,
    with_client,
)
from odradek.node.cli.output import Output, Row
from odradek.node.cli.parameters import principal
from odradek.protocol.messages.acls import (
    AclCreation,
    AclFilter,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)

F = TypeVar("F", bound=Callable[..., object])
M = TypeVar("M", AclFilter, DescribeAclsRequest)

_COLUMNS: Final = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
_OPERATIONS: Final = {each.name.lower().replace("_", "-"): each for each in AclOperation}
_PATTERNS: Final = {each.name.lower(): each for each in PatternType}
_PRODUCER: Final = {
    ResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
_CONSUMER: Final = {
    ResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
    ResourceType.GROUP: (AclOperation.READ,),
}


def resource_options(command: F) -> F:
    """The options that name resources; each may be given several times."""
    for option, what in (
        ("--user", "A user, for delegation tokens."),
        ("--delegation-token", "A delegation token."),
        ("--transactional-id", "A transactional id."),
        ("--group", "A group."),
        ("--topic", "A topic; '*' for all."),
    ):
        command = click.option(option, multiple=True, metavar="NAME", help=what)(command)
    return click.option("--cluster", is_flag=True, help="The cluster.")(command)


def entry_options(command: F) -> F:
    """The options that say who, from where, and what."""
    command = click.option(
        "--operation",
        "operations",
        multiple=True,
        type=click.Choice(list(_OPERATIONS), case_sensitive=False),
        metavar="OPERATION",
        help=f"One of {', '.join(_OPERATIONS)}.",
    )(command)
    command = click.option("--host", "hosts", multiple=True, help="An IP address; '*' for all.")(
        command
    )
    return click.option(
        "--principal",
        "principals",
        multiple=True,
        type=principal,
        metavar="PRINCIPAL",
        help="User:NAME, or NAME for short; '*' for everybody.",
    )(command)


def pattern_option(default: str, choices: Sequence[str]) -> Callable[[F], F]:
    """How the names of resources are meant."""
    return click.option(
        "--pattern",
        type=click.Choice(choices),
        default=default,
        show_default=True,
        help="How names are meant.",
    )


permission_option: Final = click.option(
    "--allow/--deny", "is_allow", default=None, help="Only what allows, or only what denies."
)


@click.group()
def acl() -> None:
    """List, add and remove access control lists.

    \b
    odradek acl add --principal bob --topic orders --group workers --consumer
    odradek acl add --principal app --topic app- --pattern prefixed --operation all
    odradek acl list --topic orders --pattern match
    """


@acl.command("list")
@resource_options
@pattern_option("any", list(_PATTERNS))
@entry_options
@permission_option
@with_client
def list_acls(client: ClusterClient, output: Output, **wanted: Any) -> None:  # noqa: ANN401
    """List the bindings, or those that match.

    `--pattern match` finds all that are about a resource: by its name, by '*' and by prefixes.
    """
    found: dict[AclBinding, None] = {}
    for each in _filters(**wanted):
        found.update(dict.fromkeys(described(client, each)))
    output.rows([_row(each) for each in sorted(found, key=_order)], _COLUMNS, empty="No ACLs.")


@acl.command()
@resource_options
@pattern_option("literal", ["literal", "prefixed"])
@entry_options
@click.option("--allow/--deny", "is_allow", default=True, help="What the bindings do.  [allow]")
@click.option("--producer", is_flag=True, help="What a producer needs: topics, transactional ids.")
@click.option("--consumer", is_flag=True, help="What a consumer needs: topics and groups.")
@click.option("--idempotent", is_flag=True, help="With --producer: IdempotentWrite on the cluster.")
@with_client
def add(
    client: ClusterClient,
    output: Output,
    *,
    producer: bool,
    consumer: bool,
    idempotent: bool,
    **wanted: Any,  # noqa: ANN401 - the options of a binding
) -> None:
    """Add bindings of operations to resources.

    Each is made for every operation, resource, principal and host that is named.

    --producer and --consumer stand for the operations that those need.
    """
    if not wanted["principals"]:
        raise click.UsageError("Name who: --principal.")
    bindings: dict[AclBinding, None] = {}
    if producer or consumer:
        if wanted["operations"]:
            raise click.UsageError("--producer and --consumer name the operations themselves.")
        for needs in (*[_PRODUCER] * producer, *[_CONSUMER] * consumer):
            bindings.update(dict.fromkeys(_needed_bindings(needs, **wanted)))
        if idempotent:
            cluster = {ResourceType.CLUSTER: (AclOperation.IDEMPOTENT_WRITE,)}
            literal = {**wanted, "cluster": True, "pattern": "literal"}
            bindings.update(dict.fromkeys(_needed_bindings(cluster, **literal)))
    else:
        operations = tuple(_OPERATIONS[each] for each in wanted["operations"])
        if not operations:
            raise click.UsageError("Name what: --operation, --producer or --consumer.")
        needs = dict.fromkeys(ResourceType, operations)
        bindings.update(dict.fromkeys(_needed_bindings(needs, **wanted)))
    if not bindings:
        raise click.UsageError(
            "Name the resources: --topic, --group, --cluster, --transactional-id, --user."
        )
    refusals = created(client, list(bindings))
    done = [_row(each) for each in bindings if _text(each) not in refusals]
    if done or output.is_json:
        output.rows(done, _COLUMNS)
    raise_refusals(refusals)


@acl.command()
@resource_options
@pattern_option("literal", list(_PATTERNS))
@entry_options
@permission_option
@click.option("--all", "is_all", is_flag=True, help="Remove all bindings of the cluster.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@with_client
def remove(
    client: ClusterClient,
    output: Output,
    *,
    is_all: bool,
    dry_run: bool,
    yes: bool,
    **wanted: Any,  # noqa: ANN401 - the options of a filter
) -> None:
    """Remove the bindings that match, after a question."""
    filters = [AclBindingFilter()] if is_all else list(_filters(**wanted))
    if not is_all and filters == [AclBindingFilter()]:
        raise click.UsageError("Name what to remove, or say --all.")
    found: dict[AclBinding, None] = {}
    for each in filters:
        found.update(dict.fromkeys(described(client, each)))
    if not found:
        output.rows([], _COLUMNS, empty="No ACLs match.")
        return
    rows = [_row(each) for each in sorted(found, key=_order)]
    if dry_run:
        output.rows(rows, _COLUMNS)
        return
    if not yes:
        for binding in sorted(found, key=_order):
            click.echo(_text(binding), err=True)
        client.confirm(f"Remove {len(found)} ACLs?")
    # What was shown, and nothing that came meanwhile.
    exact = [_exactly(each) for each in found]
    answer = client.ask(DeleteAclsRequest(filters=[_message(AclFilter, each) for each in exact]))
    for result in answer.filter_results:
        raise_on_error(result, "the ACLs could not be removed")
    output.rows(rows, _COLUMNS)


def described(client: ClusterClient, wanted: AclBindingFilter) -> Iterator[AclBinding]:
    """The bindings that a filter finds; ClickException if the broker refuses."""
    answer = client.ask(_message(DescribeAclsRequest, wanted))
    raise_on_error(answer, "the ACLs cannot be listed")
    for resource in answer.resources:
        for each in resource.acls:
            yield AclBinding(
                resource.resource_type,
                resource.pattern_type,
                resource.resource_name,
                each.principal,
                each.host,
                each.operation,
                each.permission_type,
            )


def creation_of(binding: AclBinding) -> AclCreation:
    """A binding, as CreateAcls has it."""
    return AclCreation(
        resource_type=binding.resource_type,
        resource_name=binding.resource_name,
        resource_pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission_type,
    )


def created(client: ClusterClient, bindings: Sequence[AclBinding]) -> dict[str, str]:
    """Create the bindings; why some were refused, by their texts."""
    creations = [creation_of(each) for each in bindings]
    answer = client.ask(CreateAclsRequest(creations=creations))
    return {
        _text(binding): error_text(result)
        for binding, result in zip(bindings, answer.results, strict=True)
        if result.error_code
    }


def _resources(
    *,
    cluster: bool,
    topic: Sequence[str],
    group: Sequence[str],
    transactional_id: Sequence[str],
    delegation_token: Sequence[str],
    user: Sequence[str],
) -> Iterator[tuple[ResourceType, str]]:
    if cluster:
        yield ResourceType.CLUSTER, CLUSTER_NAME
    for resource_type, names in (
        (ResourceType.TOPIC, topic),
        (ResourceType.GROUP, group),
        (ResourceType.TRANSACTIONAL_ID, transactional_id),
        (ResourceType.DELEGATION_TOKEN, delegation_token),
        (ResourceType.USER, user),
    ):
        for name in names:
            yield resource_type, name


def _needed_bindings(
    needs: Mapping[ResourceType, tuple[AclOperation, ...]],
    *,
    principals: Sequence[str],
    hosts: Sequence[str],
    is_allow: bool,
    pattern: str,
    operations: Sequence[str],
    **resources: Any,  # noqa: ANN401 - the options of resources
) -> Iterator[AclBinding]:
    permission = PermissionType.ALLOW if is_allow else PermissionType.DENY
    for resource_type, name in _resources(**resources):
        is_cluster = resource_type is ResourceType.CLUSTER
        kind = PatternType.LITERAL if is_cluster else _PATTERNS[pattern]
        for who, host, operation in product(
            principals, hosts or [WILDCARD], needs.get(resource_type, ())
        ):
            yield AclBinding(resource_type, kind, name, who, host, operation, permission)


def _filters(
    *,
    principals: Sequence[str],
    hosts: Sequence[str],
    operations: Sequence[str],
    is_allow: bool | None,
    pattern: str,
    **resources: Any,  # noqa: ANN401 - the options of resources
) -> Iterator[AclBindingFilter]:
    permission = {None: ANY, True: PermissionType.ALLOW, False: PermissionType.DENY}[is_allow]
    everything: list[tuple[int, str | None]] = [(ANY, None)]
    any_text: list[str | None] = [None]
    for (resource_type, name), who, host, operation in product(
        list(_resources(**resources)) or everything,
        principals or any_text,
        hosts or any_text,
        operations or any_text,
    ):
        yield AclBindingFilter(
            resource_type,
            # Without a name there is nothing that a pattern could match.
            PatternType.ANY if name is None else _PATTERNS[pattern],
            name,
            who,
            host,
            ANY if operation is None else _OPERATIONS[operation],
            permission,
        )


def _message(kind: type[M], wanted: AclBindingFilter) -> M:
    return kind(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission_type,
    )


def _exactly(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.resource_type,
        binding.pattern_type,
        binding.resource_name,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


def _row(binding: AclBinding) -> Row:
    return {
        "resource": _word(ResourceType, binding.resource_type),
        "name": binding.resource_name,
        "pattern": _word(PatternType, binding.pattern_type),
        "principal": binding.principal,
        "host": binding.host,
        "operation": _word(AclOperation, binding.operation),
        "permission": _word(PermissionType, binding.permission_type),
    }


def _text(binding: AclBinding) -> str:
    row = _row(binding)
    prefix = "prefix " if binding.pattern_type == PatternType.PREFIXED else ""
    host = "" if binding.host == WILDCARD else f" from {binding.host}"
    return (
        f"{row['permission']} {row['principal']}{host} {row['operation']} on"
        f" {row['resource']} {prefix}{row['name']}"
    )


def _order(binding: AclBinding) -> tuple[int, str, int, str, str, int]:
    return (
        binding.resource_type,
        binding.resource_name,
        binding.pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
    )


def _word(kind: type[Any], number: int) -> str:
    """The word for a number of the wire; a newer Kafka may have others."""
    try:
        return str(kind(number).name).lower().replace("_", "-")
    except ValueError:
        return str(number)
