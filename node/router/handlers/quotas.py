"""DescribeClientQuotas (48, versions 0 and 1) and AlterClientQuotas (49, 0 and 1).

v1 of both has the flexible encoding. Quotas are those of KIP-546, and of IP addresses (KIP-612).
"""

import asyncio
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final

from odradek.cluster.controller.commands import (
    AlterClientQuotas,
    QuotaChange,
    QuotaEntityChanges,
    QuotaEntityResult,
)
from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.client_quotas import QuotaEntity, QuotaEntityType, quota_entity
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import (
    LoopYielder,
    command_batches,
    iterate_cooperatively,
)
from odradek.node.router.topic_log import caller_fields
from odradek.node.structured_log import get_logger
from odradek.node.wire.connection_rates import is_address
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    ComponentData,
    DescribeClientQuotasEntryData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    ValueData,
)

log = get_logger(__name__)

ALTER_TIMEOUT_MS: Final = 30_000
"""The request has no timeout field. The default of clients' request.timeout.ms."""
CHANGES_MAX: Final = 10_000
"""Kafka's limit of the records that one request writes to the metadata log."""
HOST_NAMES_MAX: Final = 100
"""Host names in one request: to resolve one may take seconds."""
RESOLUTION_S_MAX: Final = 20.0

_Filter = tuple[dict[str, str | None], set[str]]
"""Names by type that an entity must have, and types of which it must have any name."""


class MatchType(IntEnum):
    """How a component of a filter matches: this name, the default, or any name."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


async def handle_describe_client_quotas(
    request: DescribeClientQuotasRequest, context: RequestContext, services: Services
) -> DescribeClientQuotasResponse:
    """The entities that match all components. Needs DESCRIBE_CONFIGS on the cluster."""
    services.authorizer.authorize(context, AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    try:
        exact, any_name = _filter(request.components)
    except ApiError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message, entries=None
        )
    count = len(exact) + len(any_name)
    entries = []
    async for entity, quotas in iterate_cooperatively(
        services.image.client_quotas.items(), context
    ):
        names = dict(entity)
        if (
            (not request.strict or len(names) == count)
            and all(kind in names and names[kind] == name for kind, name in exact.items())
            and any_name.issubset(names)
        ):
            entries.append(_described(entity, quotas))
    # As in Kafka, the text is empty and not null.
    return DescribeClientQuotasResponse(error_message="", entries=entries)


def _filter(components: Iterable[ComponentData]) -> _Filter:
    exact: dict[str, str | None] = {}
    any_name: set[str] = set()
    for component in components:
        kind, name = component.entity_type, component.match
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in exact or kind in any_name:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in set(QuotaEntityType):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        match component.match_type:
            case MatchType.EXACT:
                if name is None:
                    raise _invalid(
                        "Request specified MATCH_TYPE_EXACT, but set match string to null."
                    )
                exact[kind] = name
            case MatchType.DEFAULT:
                if name is not None:
                    raise _invalid(
                        "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."
                    )
                exact[kind] = None
            case MatchType.SPECIFIED:
                if name is not None:
                    raise _invalid(
                        "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."
                    )
                any_name.add(kind)
            case unknown:
                raise _invalid(f"Unknown match type {unknown}")
    kinds = exact.keys() | any_name
    if QuotaEntityType.IP in kinds and len(kinds) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used"
            " with user or clientId filter component."
        )
    return exact, any_name


def _described(entity: QuotaEntity, quotas: Mapping[str, float]) -> DescribeClientQuotasEntryData:
    return DescribeClientQuotasEntryData(
        entity=_components(entity),
        values=[ValueData(key=key, value=value) for key, value in sorted(quotas.items())],
    )


def _components(entity: QuotaEntity) -> list[EntityData]:
    return [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]


async def handle_alter_client_quotas(
    request: AlterClientQuotasRequest, context: RequestContext, services: Services
) -> AlterClientQuotasResponse:
    """Change the quotas of each entity by itself. Needs ALTER_CONFIGS on the cluster."""
    pace = LoopYielder(context)
    entries = []
    count = 0
    for entry in request.entries:
        await pace.step(1 + len(entry.ops))
        count += len(entry.ops)
        # Of a type that is named twice the last name holds, as in Kafka.
        names = {part.entity_type: part.entity_name for part in entry.entity}
        changes = tuple(QuotaChange(op.key, None if op.remove else op.value) for op in entry.ops)
        entries.append(QuotaEntityChanges(quota_entity(names.items()), changes))
    try:
        services.authorizer.authorize(context, AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER)
        if max(count, len(entries)) > CHANGES_MAX:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"One request can change at most {CHANGES_MAX} quotas."
            )
        unresolved = await _unresolved_hosts(entries)
        results = await _submit(entries, request, unresolved, services)
    except ApiError as error:
        # There is no field for an error of the whole request.
        results = _failed(entries, error)
    else:
        if not request.validate_only:
            _log_changes(entries, results, context)
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponseEntryData(
                error_code=result.error_code,
                error_message=result.error_message,
                entity=_components(result.entity),
            )
            async for result in iterate_cooperatively(results, context)
        ]
    )


async def _submit(
    entries: Sequence[QuotaEntityChanges],
    request: AlterClientQuotasRequest,
    unresolved: tuple[str, ...],
    services: Services,
) -> list[QuotaEntityResult]:
    """The result for each entity. Entries of the same entity stay together: they contradict each
    other."""
    by_entity: dict[QuotaEntity, list[QuotaEntityChanges]] = {}
    for entry in entries:
        by_entity.setdefault(entry.entity, []).append(entry)
    results: list[QuotaEntityResult] = []
    for some in command_batches(by_entity.values()):
        command = AlterClientQuotas(tuple(some), request.validate_only, unresolved)
        try:
            results += (await services.controller.submit(command, ALTER_TIMEOUT_MS)).results
        except ApiError as error:
            results += _failed(some, error)
    return results


def _failed(entries: Iterable[QuotaEntityChanges], error: ApiError) -> list[QuotaEntityResult]:
    return [
        QuotaEntityResult(entity, error.code, error.message)
        for entity in dict.fromkeys(entry.entity for entry in entries)
    ]


def _log_changes(
    entries: Iterable[QuotaEntityChanges],
    results: Iterable[QuotaEntityResult],
    context: RequestContext,
) -> None:
    changed = [result.entity for result in results if not result.error_code]
    if changed:
        first = ", ".join(f"{kind} {name or '<default>'}" for kind, name in changed[0])
        log.info(
            "client quotas changed", entity=first, count=len(changed), **caller_fields(context)
        )


async def _unresolved_hosts(entries: Iterable[QuotaEntityChanges]) -> tuple[str, ...]:
    """The names of ip entities that are no address of a host. They are looked up in a thread."""
    names = {
        name
        for entry in entries
        for kind, name in entry.entity
        if kind == QuotaEntityType.IP and name and not is_address(name)
    }
    if not names:
        return ()
    if len(names) > HOST_NAMES_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"One request can name at most {HOST_NAMES_MAX} hosts. Use their addresses.",
        )
    return await asyncio.get_running_loop().run_in_executor(None, _unresolvable, sorted(names))


def _unresolvable(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that cannot be resolved, or not in time. Blocks."""
    deadline = time.monotonic() + RESOLUTION_S_MAX
    missing = []
    for name in names:
        try:
            if time.monotonic() < deadline and socket.getaddrinfo(name, None):
                continue
        except (OSError, UnicodeError):
            pass
        missing.append(name)
    return tuple(missing)


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
