"""Access control: every handler checks the operation and the resource here before it acts.

No authorizer is implemented yet, so everything is allowed, as in Kafka without
`authorizer.class.name`. The handlers already name the operation that they need.
"""

from typing import Protocol

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.protocol.errors import ApiError, ErrorCode

DENIALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The errors for denied operations."""

OPERATIONS_OF: dict[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}


class AuthorizableRequestContext(Protocol):
    """What the authorizer reads of a request. RequestContext has it."""

    principal: str
    client_host: str


class Authorizer:
    """Allows everything."""

    def is_allowed(
        self,
        context: AuthorizableRequestContext,
        operation: AclOperation,
        resource: ResourceType,
        name: str,
    ) -> bool:
        """Whether the request's principal may do `operation` on the named resource."""
        return True

    def authorize(
        self,
        context: AuthorizableRequestContext,
        operation: AclOperation,
        resource: ResourceType,
        name: str = CLUSTER_NAME,
    ) -> None:
        """ApiError unless `is_allowed`. The cluster needs no name."""
        if not self.is_allowed(context, operation, resource, name):
            raise ApiError(DENIALS[resource])

    def is_topic_allowed(
        self, context: AuthorizableRequestContext, operation: AclOperation, name: str
    ) -> bool:
        """`is_allowed` for a topic."""
        return self.is_allowed(context, operation, ResourceType.TOPIC, name)

    def is_group_allowed(
        self, context: AuthorizableRequestContext, operation: AclOperation, group_id: str
    ) -> bool:
        """`is_allowed` for a group."""
        return self.is_allowed(context, operation, ResourceType.GROUP, group_id)

    def is_transactional_id_allowed(
        self, context: AuthorizableRequestContext, operation: AclOperation, transactional_id: str
    ) -> bool:
        """`is_allowed` for a transactional id."""
        return self.is_allowed(context, operation, ResourceType.TRANSACTIONAL_ID, transactional_id)

    def is_cluster_allowed(
        self, context: AuthorizableRequestContext, operation: AclOperation
    ) -> bool:
        """`is_allowed` for the cluster."""
        return self.is_allowed(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def authorized_operations(
        self, context: AuthorizableRequestContext, resource: ResourceType, name: str
    ) -> int:
        """The allowed operations as a bit field, bit n for operation n (KIP-430)."""
        field = 0
        for operation in OPERATIONS_OF[resource]:
            if self.is_allowed(context, operation, resource, name):
                field |= 1 << operation
        return field
