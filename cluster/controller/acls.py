"""CreateAcls and DeleteAcls: which bindings are created and deleted, and why others are not.

Each binding succeeds or fails by itself, in Kafka's words (AclControlManager). A binding that
exists already is no error and makes no record.
"""

from typing import Final

from odradek.cluster.controller.commands import (
    AclResult,
    AclsReply,
    CreateAcls,
    DeleteAcls,
    DeletedAclsReply,
)
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.metadata.acls import (
    CLUSTER_NAME,
    UNKNOWN,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from odradek.cluster.metadata.records import AclCreated, AclDeleted
from odradek.protocol.errors import ErrorCode

_RESOURCES: Final = frozenset(ResourceType)
_OPERATIONS: Final = frozenset(AclOperation)
_NAMES: Final = {0: "UNKNOWN", 1: "ANY", 2: "MATCH"}
"""Of the numbers that a binding cannot have."""


def create_acls(state: ControllerState, command: CreateAcls) -> ControllerResult:
    """Those that can be and are not there yet become records."""
    acls = state.image.acls
    created: dict[AclBinding, None] = {}
    results = []
    for binding in command.bindings:
        problem = binding_error(binding)
        if problem is not None:
            results.append(AclResult(ErrorCode.INVALID_REQUEST, problem))
            continue
        if binding not in acls:
            created[binding] = None
        results.append(AclResult())
    records = tuple(AclCreated(binding) for binding in created)
    return ControllerResult(records=records, reply=AclsReply(tuple(results)))


def delete_acls(state: ControllerState, command: DeleteAcls) -> ControllerResult:
    """A binding that is not there, perhaps no more, makes no record."""
    acls = state.image.acls
    were_there = tuple(binding in acls for binding in command.bindings)
    there = dict.fromkeys(
        binding for binding, was in zip(command.bindings, were_there, strict=True) if was
    )
    records = tuple(AclDeleted(binding) for binding in there)
    return ControllerResult(records=records, reply=DeletedAclsReply(were_there))


def binding_error(binding: AclBinding) -> str | None:
    """Why there can be no such binding; None if there can."""
    if binding.resource_type == ResourceType.CLUSTER and binding.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not binding.resource_name:
        return "Invalid empty resource name"
    if binding.resource_type not in _RESOURCES:
        return f"Invalid resourceType {_NAMES.get(binding.resource_type, 'UNKNOWN')}"
    if binding.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {_NAMES.get(binding.pattern_type, 'UNKNOWN')}"
    if binding.operation not in _OPERATIONS:
        return f"Invalid operation {_NAMES.get(binding.operation, 'UNKNOWN')}"
    if binding.permission_type not in (PermissionType.DENY, PermissionType.ALLOW):
        return f"Invalid permissionType {_NAMES.get(binding.permission_type, 'UNKNOWN')}"
    if ":" not in binding.principal:
        return (
            f"Could not parse principal from `{binding.principal}` (no colon is present separating"
            " the principal type from the principal name)"
        )
    return None


def filter_error(wanted: AclBindingFilter) -> str | None:
    """Why nothing can be looked for with this filter; None if it can."""
    if not UNKNOWN < wanted.resource_type <= max(ResourceType):
        return "Unknown patternFilter."
    if not UNKNOWN < wanted.pattern_type <= max(PatternType):
        return "Unknown patternFilter."
    if not UNKNOWN < wanted.operation <= max(AclOperation):
        return "Unknown entryFilter."
    if not UNKNOWN < wanted.permission_type <= max(PermissionType):
        return "Unknown entryFilter."
    return None
