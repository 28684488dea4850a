"""Access control lists: DescribeAcls (29), CreateAcls (30), DeleteAcls (31)."""

from __future__ import annotations

from odradek.protocol.messages.responses import ErrorMessageResponse
from odradek.protocol.schema import array, int8, int16, int32, string, struct
from odradek.protocol.types import Request


@struct
class AclFilter:
    """The ACLs that match. 1 means any, a null name any name. v1 adds the pattern type."""

    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable_since=0)
    pattern_type_filter: int = int8(default=3, since=1)
    principal_filter: str | None = string(nullable_since=0)
    host_filter: str | None = string(nullable_since=0)
    operation: int = int8()
    permission_type: int = int8()


@struct
class DescribeAclsRequest(AclFilter, Request["DescribeAclsResponse"]):
    """List the ACLs that match."""


@struct
class AclDescription:
    """One ACL: principal, host, operation, permission."""

    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@struct
class DescribeAclsResource:
    """A resource pattern and its ACLs."""

    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(default=3, since=1)
    acls: list[AclDescription] = array(AclDescription)


@struct
class DescribeAclsResponse(ErrorMessageResponse):
    """The ACLs found."""

    resources: list[DescribeAclsResource] = array(DescribeAclsResource)


@struct
class AclCreation:
    """An ACL to add; v1 adds the pattern type, 3 literal or 4 prefixed (KIP-290)."""

    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8(default=3, since=1)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@struct
class CreateAclsRequest(Request["CreateAclsResponse"]):
    """Add ACLs; v3 knows the resource type user."""

    creations: list[AclCreation] = array(AclCreation)


@struct
class AclCreationResult:
    """The result for the ACL with the same index in the request."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)


@struct
class CreateAclsResponse:
    """One result per ACL, in the request's order."""

    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)


@struct
class DeleteAclsRequest(Request["DeleteAclsResponse"]):
    """Remove all ACLs that match any of these filters."""

    filters: list[AclFilter] = array(AclFilter)


@struct
class DeleteAclsMatchingAcl:
    """An ACL that matched, and whether it was deleted."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(default=3, since=1)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@struct
class DeleteAclsFilterResult:
    """The ACLs that one filter matched."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


@struct
class DeleteAclsResponse:
    """The results, in the order of the filters."""

    throttle_time_ms: int = int32()
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)
