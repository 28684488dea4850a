"""DescribeAcls, CreateAcls, DeleteAcls.

All in versions 0 to 3: v1 has pattern types (KIP-290), v3 the resource type user. Version 0 knows
literal patterns only: that is what its filters and bindings are about.

The controller decides about changes; the router describes its own image. Without an authorizer all
of them answer SECURITY_DISABLED, as in Kafka: bindings that nobody enforces would be a trap.
"""

from typing import Final

from odradek.cluster.controller.acls import filter_error
from odradek.cluster.controller.commands import CreateAcls, DeleteAcls
from odradek.cluster.metadata.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    ResourceType,
)
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import LoopYielder, iterate_cooperatively
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
    async for each in iterate_cooperatively(services.image.acls.matching(wanted), context):
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
        reply = await services.controller.submit(CreateAcls(tuple(bindings)), ALTER_TIMEOUT_MS)
    except ApiError as error:
        failed = AclCreationResult(error_code=error.code, error_message=error.message)
        return CreateAclsResponse(results=[failed] * len(creations))
    return CreateAclsResponse(
        results=[
            AclCreationResult(error_code=result.error_code, error_message=result.error_message)
            for result in reply.results
        ]
    )


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
        command = DeleteAcls(tuple(_filter_of(each) for each in request.filters))
        reply = await services.controller.submit(command, ALTER_TIMEOUT_MS)
    except ApiError as error:
        failed = DeleteAclsFilterResult(error_code=error.code, error_message=error.message)
        return DeleteAclsResponse(filter_results=[failed] * len(request.filters))
    pace = LoopYielder(context)
    results = []
    for result in reply.results:
        answer = DeleteAclsFilterResult(
            error_code=result.error_code, error_message=result.error_message
        )
        results.append(answer)
        for each in result.deleted:
            await pace.step()
            answer.matching_acls.append(_deleted(each))
    return DeleteAclsResponse(filter_results=results)


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
