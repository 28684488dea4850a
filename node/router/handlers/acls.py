"""DescribeAcls, CreateAcls, DeleteAcls.

All in versions 0 to 3: v1 has pattern types (KIP-290), v3 the resource type user. Version 0 knows
literal patterns only: that is what its filters and bindings are about.

The router looks for bindings in its own image, a piece at a time, because a filter may be compared
with all of them; the controller decides about changes, in commands of a bounded size. Without an
authorizer all of them answer SECURITY_DISABLED, as in Kafka: bindings that nobody enforces would be
a trap.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from odradek.cluster.controller.acls import filter_error
from odradek.cluster.controller.commands import CreateAcls, DeleteAcls
from odradek.cluster.metadata.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclsImage,
    ResourceType,
)
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import (
    ITEMS_PER_TURN,
    LoopYielder,
    command_batches,
    iterate_cooperatively,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.acls import (
    AclCreationResult,
    AclDescription,
    AclFilter,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

ALTER_TIMEOUT_MS: Final = 30_000
"""The requests have no timeout: Kafka's default request.timeout.ms."""
CREATED_MAX: Final = 10_000
"""Bindings of one request. Kafka's limit for the records of one request."""
FILTERS_MAX: Final = 1_000
"""Of one DeleteAcls: each may be compared with every binding."""
DELETED_MAX: Final = 10_000
"""Bindings in the response to one DeleteAcls. Kafka's MAX_RECORDS_PER_USER_OP."""
_PIECE_COST: Final = ITEMS_PER_TURN // 4
"""Of a piece of a search: a millisecond at most, with what is made of the bindings found."""


async def handle_describe_acls(
    request: DescribeAclsRequest, context: RequestContext, services: Services
) -> DescribeAclsResponse:
    """The bindings that match, those of one pattern together. Needs DESCRIBE on the cluster.

    INVALID_REQUEST for a filter with numbers that stand for nothing.
    """
    services.authorizer.authorize(context, AclOperation.DESCRIBE, ResourceType.CLUSTER)
    if not services.authorizer.is_enabled:
        raise ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    wanted = _filter_of(request)
    problem = filter_error(wanted)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    async for each in _search(services.image.acls, wanted, LoopYielder(context)):
        key = (each.resource_type, each.resource_name, each.pattern_type)
        resource = resources.get(key)
        if resource is None:
            resource = resources[key] = DescribeAclsResource(
                resource_type=key[0], resource_name=key[1], pattern_type=key[2]
            )
        resource.acls.append(
            AclDescription(
                principal=each.principal,
                host=each.host,
                operation=each.operation,
                permission_type=each.permission_type,
            )
        )
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))


async def handle_create_acls(
    request: CreateAclsRequest, context: RequestContext, services: Services
) -> CreateAclsResponse:
    """Create bindings, each by itself; they are in force before the response. Needs ALTER on the
    cluster. An error for the whole request is repeated for every binding."""
    creations = request.creations
    try:
        _check_may_alter(context, services)
        if len(creations) > CREATED_MAX:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"One request can create at most {CREATED_MAX} bindings.",
            )
        bindings = []
        async for each in iterate_cooperatively(creations, context):
            bindings.append(  # noqa: PERF401 - the loop is yielded to
                AclBinding(
                    each.resource_type,
                    each.resource_pattern_type,
                    each.resource_name,
                    each.principal,
                    each.host,
                    each.operation,
                    each.permission_type,
                )
            )
    except ApiError as error:
        return CreateAclsResponse(results=[_not_created(error)] * len(creations))
    response = CreateAclsResponse()
    for some in command_batches([each] for each in bindings):
        try:
            reply = await services.controller.submit(CreateAcls(tuple(some)), ALTER_TIMEOUT_MS)
        except ApiError as error:
            response.results += [_not_created(error)] * (len(bindings) - len(response.results))
            break
        response.results += [
            AclCreationResult(error_code=result.error_code, error_message=result.error_message)
            for result in reply.results
        ]
    return response


async def handle_delete_acls(
    request: DeleteAclsRequest, context: RequestContext, services: Services
) -> DeleteAclsResponse:
    """Delete what the filters find, and say what that was. Needs ALTER on the cluster. An error
    for the whole request is repeated for every filter."""
    try:
        _check_may_alter(context, services)
        if len(request.filters) > FILTERS_MAX:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"One request can have at most {FILTERS_MAX} filters.",
            )
        # All bindings that anybody was told of are in this node's image after this.
        await services.controller.submit(DeleteAcls(()), ALTER_TIMEOUT_MS)
    except ApiError as error:
        failed = DeleteAclsFilterResult(error_code=error.code, error_message=error.message)
        return DeleteAclsResponse(filter_results=[failed] * len(request.filters))
    acls = services.image.acls
    found: list[list[AclBinding] | ApiError] = []
    left = DELETED_MAX
    pace = LoopYielder(context)
    for each in request.filters:
        outcome = await _found(acls, _filter_of(each), left, pace)
        found.append(outcome)
        left -= len(outcome) if isinstance(outcome, list) else 0
    doomed: dict[AclBinding, None] = {}
    for outcome in found:
        if isinstance(outcome, list):
            await pace.step(len(outcome) // 10)
            # What several filters have found is deleted once.
            doomed.update(dict.fromkeys(outcome))
    deleted = await _delete(doomed, services)
    response = DeleteAclsResponse()
    for outcome in found:
        response.filter_results.append(await _filter_result(outcome, deleted, pace))
    return response


async def _search(
    acls: AclsImage, wanted: AclBindingFilter, pace: LoopYielder
) -> AsyncIterator[AclBinding]:
    for piece in acls.search(wanted):
        await pace.step(_PIECE_COST)
        for each in piece:
            yield each


async def _found(
    acls: AclsImage, wanted: AclBindingFilter, count_max: int, pace: LoopYielder
) -> list[AclBinding] | ApiError:
    """What the filter finds, or why nothing is deleted for it."""
    problem = filter_error(wanted)
    if problem is not None:
        return ApiError(ErrorCode.INVALID_REQUEST, problem)
    found: list[AclBinding] = []
    async for each in _search(acls, wanted, pace):
        if len(found) == count_max:
            text = f"Cannot remove more than {DELETED_MAX} acls in a single delete operation."
            return ApiError(ErrorCode.POLICY_VIOLATION, text)
        found.append(each)
    return found


async def _delete(
    bindings: Iterable[AclBinding], services: Services
) -> dict[AclBinding, bool | ApiError]:
    """Whether each binding was there and is deleted, or why it could not be."""
    outcomes: dict[AclBinding, bool | ApiError] = {}
    for some in command_batches([each] for each in bindings):
        try:
            reply = await services.controller.submit(DeleteAcls(tuple(some)), ALTER_TIMEOUT_MS)
        except ApiError as error:
            outcomes.update(dict.fromkeys(some, error))
        else:
            outcomes.update(zip(some, reply.were_there, strict=True))
    return outcomes


async def _filter_result(
    found: Sequence[AclBinding] | ApiError,
    deleted: dict[AclBinding, bool | ApiError],
    pace: LoopYielder,
) -> DeleteAclsFilterResult:
    if isinstance(found, ApiError):
        return DeleteAclsFilterResult(error_code=found.code, error_message=found.message)
    result = DeleteAclsFilterResult(error_message=None)
    for each in found:
        await pace.step()
        outcome = deleted[each]
        if isinstance(outcome, ApiError):
            return DeleteAclsFilterResult(error_code=outcome.code, error_message=outcome.message)
        if outcome:
            result.matching_acls.append(_deleted(each))
    return result


def _not_created(error: ApiError) -> AclCreationResult:
    return AclCreationResult(error_code=error.code, error_message=error.message)


def _check_may_alter(context: RequestContext, services: Services) -> None:
    services.authorizer.authorize(context, AclOperation.ALTER, ResourceType.CLUSTER)
    if not services.authorizer.is_enabled:
        raise ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def _filter_of(wanted: AclFilter) -> AclBindingFilter:
    return AclBindingFilter(
        wanted.resource_type_filter,
        wanted.pattern_type_filter,
        wanted.resource_name_filter,
        wanted.principal_filter,
        wanted.host_filter,
        wanted.operation,
        wanted.permission_type,
    )


def _deleted(binding: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=binding.resource_type,
        resource_name=binding.resource_name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission_type,
    )
