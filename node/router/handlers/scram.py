"""DescribeUserScramCredentials (50, version 0) and AlterUserScramCredentials (51, 0): KIP-554.

Any node serves both. A client sends a salted password, which is as good as the password: the keys
that prove it are computed here, and only they leave this process.
"""

from collections.abc import Sequence

from odradek.cluster.controller.commands import (
    AlterScramCredentials,
    DeleteScramCredential,
    ScramCredentialsResult,
    SetScramCredential,
)
from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.scram import (
    ScramCredential,
    ScramImage,
    ScramMechanism,
    ScramUser,
    credential_of,
)
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import (
    LoopYielder,
    command_batches,
    iterate_cooperatively,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialUpsertion,
)

ALTER_TIMEOUT_MS = 30_000
"""The request has no timeout field. The default of clients' request.timeout.ms."""
CHANGES_MAX = 10_000
"""Kafka's limit of the records that one request writes to the metadata log."""
SALT_BYTES_MAX = 1_024


async def handle_describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, context: RequestContext, services: Services
) -> DescribeUserScramCredentialsResponse:
    """The mechanisms and iterations of each user's credentials. Needs DESCRIBE on the cluster; the
    error is repeated for every user that is named."""
    if not services.authorizer.is_cluster_allowed(context, AclOperation.DESCRIBE):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeUserScramCredentialsResponse(
            error_code=code,
            error_message=code.message,
            results=[
                DescribeUserScramCredentialsResult(
                    user=user.name, error_code=code, error_message=code.message
                )
                for user in request.users or ()
            ],
        )
    credentials = services.image.scram_credentials
    named: dict[str, int] = {}
    if request.users:
        async for user in iterate_cooperatively(request.users, context):
            named[user.name] = named.get(user.name, 0) + 1
    else:
        async for name, _ in iterate_cooperatively(credentials, context):
            named[name] = 1
    response = DescribeUserScramCredentialsResponse()
    async for name, times in iterate_cooperatively(named.items(), context):
        response.results.append(_described(name, times, credentials))
    return response


def _described(
    name: str, times: int, credentials: ScramImage
) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=name)
    if times > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        result.error_message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
        return result
    for mechanism in ScramMechanism:
        credential = credentials.get(ScramUser(name, mechanism))
        if credential is not None:
            result.credential_infos.append(
                CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
            )
    if not result.credential_infos:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        result.error_message = f"Attempt to describe a user credential that does not exist: {name}"
    return result


async def handle_alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, context: RequestContext, services: Services
) -> AlterUserScramCredentialsResponse:
    """Set and delete credentials. Needs ALTER on the cluster. An error for the whole request is
    repeated for every user."""
    try:
        return await _alter(request, context, services)
    except ApiError as error:
        users = dict.fromkeys(each.name for each in request.deletions)
        users.update(dict.fromkeys(each.name for each in request.upsertions))
        return AlterUserScramCredentialsResponse(
            results=[
                AlterUserScramCredentialsResult(
                    user=user, error_code=error.code, error_message=error.message
                )
                for user in users
            ]
        )


async def _alter(
    request: AlterUserScramCredentialsRequest, context: RequestContext, services: Services
) -> AlterUserScramCredentialsResponse:
    services.authorizer.authorize(context, AclOperation.ALTER, ResourceType.CLUSTER)
    if len(request.deletions) + len(request.upsertions) > CHANGES_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"One request can alter at most {CHANGES_MAX} credentials.",
        )
    pace = LoopYielder(context)
    by_user: dict[str, list[DeleteScramCredential | SetScramCredential]] = {}
    for deletion in request.deletions:
        changes = by_user.setdefault(deletion.name, [])
        changes.append(DeleteScramCredential(deletion.name, deletion.mechanism))
    for each in request.upsertions:
        await pace.step()
        by_user.setdefault(each.name, []).append(
            SetScramCredential(each.name, each.mechanism, each.iterations, _credential(each))
        )
    response = AlterUserScramCredentialsResponse()
    # The changes of a user take effect together.
    for some in command_batches(by_user.values()):
        response.results += await _submit(some, services)
    return response


async def _submit(
    changes: Sequence[DeleteScramCredential | SetScramCredential], services: Services
) -> list[AlterUserScramCredentialsResult]:
    command = AlterScramCredentials(
        tuple(each for each in changes if isinstance(each, DeleteScramCredential)),
        tuple(each for each in changes if isinstance(each, SetScramCredential)),
    )
    try:
        results = (await services.controller.submit(command, ALTER_TIMEOUT_MS)).results
    except ApiError as error:
        users = dict.fromkeys(each.user for each in changes)
        results = tuple(ScramCredentialsResult(user, error.code, error.message) for user in users)
    return [
        AlterUserScramCredentialsResult(
            user=result.user, error_code=result.error_code, error_message=result.error_message
        )
        for result in results
    ]


def _credential(upsertion: ScramCredentialUpsertion) -> ScramCredential | None:
    """The credential; None if the client's bytes make none."""
    try:
        mechanism = ScramMechanism(upsertion.mechanism)
    except ValueError:
        return None
    salt, salted = bytes(upsertion.salt), bytes(upsertion.salted_password)
    if not 0 < len(salt) <= SALT_BYTES_MAX or len(salted) != mechanism.digest_bytes:
        return None
    return credential_of(mechanism, salted, salt, upsertion.iterations)
