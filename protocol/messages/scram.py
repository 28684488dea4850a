"""SCRAM credentials: DescribeUserScramCredentials (50), AlterUserScramCredentials (51)."""

from __future__ import annotations

from odradek.protocol.messages.responses import ErrorMessageResponse
from odradek.protocol.schema import array, binary, int8, int16, int32, string, struct
from odradek.protocol.types import Request


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
