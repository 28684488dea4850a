"""Access control: every handler checks the operation and the resource here before it acts.

Without `authorizer.class.name` everything is allowed, as in Kafka. With it, super users and other
nodes of the cluster may do everything, and the bindings of the metadata image decide about the rest
(cluster/metadata/acls.py). Decisions are remembered until a binding or one of the settings changes.
"""

from typing import Final, Protocol

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, AclsImage, ResourceType
from odradek.cluster.metadata.authorizer_settings import AuthorizerSettings, super_users_of
from odradek.node.router.metadata_cache import MetadataCache
from odradek.protocol.errors import ApiError, ErrorCode

CLUSTER_PRINCIPAL: Final = "Node:CLUSTER"
"""The principal of other nodes of the cluster. Clients are of the type User, whatever they send."""

DENIALS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The errors for denied operations. Operations on users are about their delegation tokens."""

OPERATIONS_OF: Final[dict[ResourceType, tuple[AclOperation, ...]]] = {
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
    ResourceType.TRANSACTIONAL_ID: (
        AclOperation.WRITE,
        AclOperation.DESCRIBE,
        AclOperation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""The operations that a resource of each type knows (Kafka: AclEntry.supportedOperations)."""

DECISIONS_MAX: Final = 20_000
"""How many decisions are remembered, at about 200 bytes each, before all are forgotten."""
_NAME_LENGTH_MAX: Final = 255
"""Of names in decisions that are remembered: no topic's is longer."""


class AuthorizableRequestContext(Protocol):
    """What the authorizer reads of a request, and that it has denied something. RequestContext has
    it."""

    principal: str
    client_host: str
    was_denied: bool


class _Rules:
    """Kafka's StandardAuthorizer for one set of bindings and settings, and what it has decided."""

    __slots__ = ("_acls", "_decisions", "_default", "_super_users")

    def __init__(self, acls: AclsImage, super_users: frozenset[str], *, default: bool) -> None:
        self._acls = acls
        self._super_users = super_users
        self._default = default
        self._decisions: dict[tuple[str, str, int, int, str | None], bool] = {}

    def allows(
        self, principal: str, host: str, operation: int, resource: int, name: str | None
    ) -> bool:
        """Whether the principal may do that to the named resource; None: to any of that type."""
        if principal in self._super_users:
            return True
        key = (principal, host, operation, resource, name)
        decided = self._decisions.get(key)
        if decided is not None:
            return decided
        acls, default = self._acls, self._default
        if name is None:
            decided = acls.evaluate_any(principal, host, operation, resource, default=default)
        else:
            decided = acls.evaluate(principal, host, operation, resource, name, default=default)
            if len(name) > _NAME_LENGTH_MAX:
                return decided
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        self._decisions[key] = decided
        return decided


class Authorizer:
    """Allows everything until `follow` has found rules."""

    def __init__(self) -> None:
        self.denied_count = 0
        self._rules: _Rules | None = None
        self._source: tuple[AclsImage, AuthorizerSettings, str | None] | None = None

    @property
    def is_enabled(self) -> bool:
        """Whether an authorizer is configured."""
        return self._rules is not None

    @property
    def rules(self) -> object:
        """What decisions are made by: another object after each change, None without rules."""
        return self._rules

    def follow(self, metadata: MetadataCache) -> None:
        """Apply the bindings and the settings as they are now."""
        acls, settings = metadata.image.acls, metadata.broker_settings().authorizer
        own_super_users = metadata.static_configs.get("super.users")
        source = self._source
        if (
            source is not None
            and source[0] is acls
            and source[1] == settings
            and source[2] == own_super_users
        ):
            return
        self._source = acls, settings, own_super_users
        if not settings.authorizer_class_name:
            self._rules = None
            return
        own = super_users_of(own_super_users or "")
        super_users = frozenset({CLUSTER_PRINCIPAL, *settings.super_users, *own})
        self._rules = _Rules(acls, super_users, default=settings.allow_everyone_if_no_acl_is_found)

    def is_allowed(
        self,
        context: AuthorizableRequestContext,
        operation: AclOperation,
        resource: ResourceType,
        name: str,
    ) -> bool:
        """Whether the request's principal may do `operation` on the named resource."""
        rules = self._rules
        if rules is None or rules.allows(
            context.principal, context.client_host, operation, resource, name
        ):
            return True
        self.denied_count += 1
        context.was_denied = True
        return False

    def is_any_allowed(
        self, context: AuthorizableRequestContext, operation: AclOperation, resource: ResourceType
    ) -> bool:
        """Whether the principal may do `operation` on at least one resource of that type."""
        rules = self._rules
        return rules is None or rules.allows(
            context.principal, context.client_host, operation, resource, None
        )

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
