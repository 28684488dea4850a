"""Who may do what: every handler asks here, by resource and operation, before it acts.

There is no authoriser configured yet, so that everything is allowed, as in a Kafka without
`authorizer.class.name`. The handlers already name what they need; rules come behind this face.
"""

from enum import IntEnum
from typing import Protocol


class AclOperation(IntEnum):
    """ACL operations with their numbers on the wire (KIP-50)."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(IntEnum):
    """ACL resource types with their numbers on the wire."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


CLUSTER_NAME = "kafka-cluster"

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

NOT_ASKED = -2147483648
"""What an "authorized operations" field holds when the client did not ask for it."""


class AuthorizableRequestContext(Protocol):
    """What the authoriser needs to know of a request: RequestContext has it."""

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

    def authorized_operations(
        self, context: AuthorizableRequestContext, resource: ResourceType, name: str
    ) -> int:
        """The bit field of allowed operations, as Metadata, DescribeCluster and DescribeGroups
        answer it."""
        field = 0
        for operation in OPERATIONS_OF[resource]:
            if self.is_allowed(context, operation, resource, name):
                field |= 1 << operation
        return field
