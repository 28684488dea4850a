"""Quotas and SCRAM credentials: DescribeClientQuotas (48), AlterClientQuotas (49),
DescribeUserScramCredentials (50), AlterUserScramCredentials (51).
"""

from __future__ import annotations

from odradek.protocol.messages.responses import ErrorMessageResponse
from odradek.protocol.schema import (
    array,
    binary,
    boolean,
    float64,
    int8,
    int16,
    int32,
    string,
    struct,
)
from odradek.protocol.types import Request


@struct
class ComponentData:
    """One condition: 0 an exact name, 1 the default entity, 2 any name given."""

    entity_type: str = string()
    match_type: int = int8()
    match: str | None = string(nullable_since=0)


@struct
class DescribeClientQuotasRequest(Request["DescribeClientQuotasResponse"]):
    """List matching quotas. `strict` excludes entities with further components."""

    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean()


@struct
class EntityData:
    """One component of an entity, such as a user; a null name is the default."""

    entity_type: str = string()
    entity_name: str | None = string(nullable_since=0)


@struct
class ValueData:
    """A quota and its value."""

    key: str = string()
    value: float = float64()


@struct
class DescribeClientQuotasEntryData:
    """An entity and its quotas."""

    entity: list[EntityData] = array(EntityData)
    values: list[ValueData] = array(ValueData)


@struct
class DescribeClientQuotasResponse(ErrorMessageResponse):
    """The quotas found; null with an error."""

    entries: list[DescribeClientQuotasEntryData] | None = array(
        DescribeClientQuotasEntryData, nullable_since=0
    )


@struct
class OpData:
    """A quota to set, or to remove."""

    key: str = string()
    value: float = float64()
    remove: bool = boolean()


@struct
class AlterClientQuotasRequestEntryData:
    """An entity and the changes to it."""

    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


@struct
class AlterClientQuotasRequest(Request["AlterClientQuotasResponse"]):
    """Change quotas (KIP-546)."""

    entries: list[AlterClientQuotasRequestEntryData] = array(AlterClientQuotasRequestEntryData)
    validate_only: bool = boolean()


@struct
class AlterClientQuotasResponseEntryData:
    """The result for one entity."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    entity: list[EntityData] = array(EntityData)


@struct
class AlterClientQuotasResponse:
    """One result per entity."""

    throttle_time_ms: int = int32()
    entries: list[AlterClientQuotasResponseEntryData] = array(AlterClientQuotasResponseEntryData)


@struct
class UserName:
    """A user."""

    name: str = string()


@struct
class DescribeUserScramCredentialsRequest(Request["DescribeUserScramCredentialsResponse"]):
    """List SCRAM credentials. No users, or null, means all (KIP-554)."""

    users: list[UserName] | None = array(UserName, nullable_since=0)


@struct
class CredentialInfo:
    """A mechanism, 1 SHA-256 or 2 SHA-512, and its iterations; never the secret."""

    mechanism: int = int8()
    iterations: int = int32()


@struct
class DescribeUserScramCredentialsResult:
    """One user's credentials."""

    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


@struct
class DescribeUserScramCredentialsResponse(ErrorMessageResponse):
    """The credentials found."""

    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)


@struct
class ScramCredentialDeletion:
    """A credential to delete."""

    name: str = string()
    mechanism: int = int8()


@struct
class ScramCredentialUpsertion:
    """A credential to set; the client has salted the password."""

    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: bytes = binary()
    salted_password: bytes = binary()


@struct
class AlterUserScramCredentialsRequest(Request["AlterUserScramCredentialsResponse"]):
    """Change SCRAM credentials."""

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


@struct
class AlterUserScramCredentialsResult:
    """Whether one user's credentials were changed."""

    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)


@struct
class AlterUserScramCredentialsResponse:
    """One result per user."""

    throttle_time_ms: int = int32()
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)
