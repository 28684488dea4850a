"""AlterUserScramCredentials: the credentials with which users authenticate (KIP-554).

The changes of one user take effect together or not at all, those of other users regardless. Unlike
Kafka's controller, this one lets a request change several mechanisms of a user: kafka-configs sends
them in one.
"""

from collections.abc import Sequence

from odradek.cluster.controller.commands import (
    AlterScramCredentials,
    DeleteScramCredential,
    ScramCredentialsReply,
    ScramCredentialsResult,
    SetScramCredential,
)
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.metadata.records import ScramCredentialChanged, ScramCredentialRemoved
from odradek.cluster.metadata.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramImage,
    ScramMechanism,
    ScramUser,
)
from odradek.protocol.errors import ApiError, ErrorCode

USER_NAME_LENGTH_MAX = 1_024
"""A name that a client can still send in a SASL message."""

_Change = DeleteScramCredential | SetScramCredential
_Changed = ScramCredentialChanged | ScramCredentialRemoved


def alter_scram_credentials(
    state: ControllerState, command: AlterScramCredentials
) -> ControllerResult:
    """Set and delete credentials, in Kafka's words."""
    by_user: dict[str, list[_Change]] = {}
    changes: tuple[_Change, ...] = (*command.deletions, *command.upsertions)
    for change in changes:
        by_user.setdefault(change.user, []).append(change)
    records: list[_Changed] = []
    results = []
    for user, own in by_user.items():
        try:
            records += _records_of(own, state.image.scram_credentials)
        except ApiError as error:
            results.append(ScramCredentialsResult(user, error.code, error.message))
        else:
            results.append(ScramCredentialsResult(user))
    return ControllerResult(tuple(records), ScramCredentialsReply(tuple(results)))


def _records_of(changes: Sequence[_Change], credentials: ScramImage) -> list[_Changed]:
    mechanisms = [change.mechanism for change in changes]
    if len(set(mechanisms)) < len(mechanisms):
        raise ApiError(
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        )
    return [_record_of(change, credentials) for change in changes]


def _record_of(change: _Change, credentials: ScramImage) -> _Changed:
    _check_user(change)
    if isinstance(change, DeleteScramCredential):
        if ScramUser(change.user, change.mechanism) not in credentials:
            raise ApiError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        return ScramCredentialRemoved(change.user, change.mechanism)
    if change.iterations < ITERATIONS_MIN:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if change.credential is None:
        raise ApiError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "The salt or the salted password has not the length that the mechanism needs",
        )
    return ScramCredentialChanged(change.user, change.mechanism, change.credential)


def _check_user(change: _Change) -> None:
    if not change.user:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(change.user) > USER_NAME_LENGTH_MAX or "\0" in change.user:
        raise ApiError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"Username must have at most {USER_NAME_LENGTH_MAX} characters, none of which is NUL",
        )
    if change.mechanism not in set(ScramMechanism):
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
