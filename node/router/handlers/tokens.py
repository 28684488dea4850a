"""Delegation tokens (KIP-48, KIP-373): CreateDelegationToken (38, versions 1 to 3),
RenewDelegationToken (39, 1 and 2), ExpireDelegationToken (40, 1 and 2) and
DescribeDelegationToken (41, 1 to 3).

v2 of all has the flexible encoding; v3 of Create takes another owner than the client, v3 of
Describe tells who has requested a token. Any node serves all of them that has
delegation.token.secret.key. The HMAC of a token is made here and leaves this process only in the
answer to a client: the controller gets its digest.
"""

import secrets
from typing import Final

from odradek.cluster.controller.commands import (
    CreateDelegationToken,
    ExpireDelegationToken,
    RenewDelegationToken,
)
from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.delegation_tokens import (
    DelegationToken,
    hmac_digest,
    token_credentials,
    token_hmac,
)
from odradek.cluster.metadata.scram import SALT_RANDOM_BYTES, ScramMechanism, salt_of
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import iterate_cooperatively, run_in_thread
from odradek.node.router.topic_log import caller_fields
from odradek.node.structured_log import get_logger
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    TokenPrincipal,
)
from odradek.protocol.types import NO_TIMESTAMP, uuid_to_text

log = get_logger(__name__)

CHANGE_TIMEOUT_MS: Final = 30_000
"""The requests have no timeout field. The default of clients' request.timeout.ms."""
RENEWERS_MAX: Final = 1_000
NAME_LENGTH_MAX: Final = 1_024
"""Of a principal. All nodes keep it in memory."""
_USER: Final = "User"


async def handle_create_delegation_token(
    request: CreateDelegationTokenRequest, context: RequestContext, services: Services
) -> CreateDelegationTokenResponse:
    """Create a token of the client, or of another owner, for which it needs CREATE_TOKENS on that
    user."""
    owner = context.principal
    if request.owner_principal_name:
        owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
    response = CreateDelegationTokenResponse(
        issue_timestamp_ms=NO_TIMESTAMP,
        expiry_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
    )
    response.principal_type, _, response.principal_name = owner.partition(":")
    kind, _, name = context.principal.partition(":")
    response.token_requester_principal_type = kind
    response.token_requester_principal_name = name
    try:
        await _create(request, context, services, owner, response)
    except ApiError as error:
        response.error_code = error.code
    return response


async def _create(
    request: CreateDelegationTokenRequest,
    context: RequestContext,
    services: Services,
    owner: str,
    response: CreateDelegationTokenResponse,
) -> None:
    _check_is_identified(context, services)
    if owner != context.principal:
        services.authorizer.authorize(context, AclOperation.CREATE_TOKENS, ResourceType.USER, owner)
        if request.owner_principal_type != _USER:
            # A client with the token would be the user of that name.
            raise ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    if any(each.principal_type != _USER for each in request.renewers):
        raise ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    names = [owner, *(each.principal_name for each in request.renewers)]
    if len(names) > RENEWERS_MAX or max(map(len, names)) > NAME_LENGTH_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    token_id = _new_token_id()
    token_mac = token_hmac(_secret_key(services), token_id)
    salts = [salt_of(secrets.token_bytes(SALT_RANDOM_BYTES)) for _ in ScramMechanism]
    token = DelegationToken(
        token_id=token_id,
        owner=owner,
        requester=context.principal,
        renewers=tuple(f"{_USER}:{each.principal_name}" for each in request.renewers),
        issue_ms=services.now_ms(),
        max_ms=0,
        expiry_ms=0,
        hmac_digest=hmac_digest(token_mac),
        credentials=await run_in_thread(token_credentials, token_mac, salts),
    )
    command = CreateDelegationToken(token, request.max_lifetime_ms)
    reply = await services.controller.submit(command, CHANGE_TIMEOUT_MS)
    log.info(
        "a delegation token was created",
        token_id=token_id,
        owner=str(owner),
        **caller_fields(context),
    )
    response.issue_timestamp_ms = reply.issue_ms
    response.expiry_timestamp_ms = reply.expiry_ms
    response.max_timestamp_ms = reply.max_ms
    response.token_id = token_id
    response.hmac = token_mac


async def handle_renew_delegation_token(
    request: RenewDelegationTokenRequest, context: RequestContext, services: Services
) -> RenewDelegationTokenResponse:
    """Move the end of a token that the client owns or may renew."""
    if not services.is_identified(context.connection_id):
        return RenewDelegationTokenResponse(
            error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
            expiry_timestamp_ms=NO_TIMESTAMP,
        )
    digest = _known_digest(bytes(request.hmac), services)
    command = RenewDelegationToken(
        digest, context.principal, request.renew_period_ms, services.now_ms()
    )
    reply = await services.controller.submit(command, CHANGE_TIMEOUT_MS)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=reply.expiry_ms)


async def handle_expire_delegation_token(
    request: ExpireDelegationTokenRequest, context: RequestContext, services: Services
) -> ExpireDelegationTokenResponse:
    """Move the end of a token that the client owns or may renew; with a negative period remove
    it."""
    if not services.is_identified(context.connection_id):
        return ExpireDelegationTokenResponse(
            error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
            expiry_timestamp_ms=NO_TIMESTAMP,
        )
    digest = _known_digest(bytes(request.hmac), services)
    command = ExpireDelegationToken(
        digest, context.principal, request.expiry_time_period_ms, services.now_ms()
    )
    reply = await services.controller.submit(command, CHANGE_TIMEOUT_MS)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=reply.expiry_ms)


async def handle_describe_delegation_token(
    request: DescribeDelegationTokenRequest, context: RequestContext, services: Services
) -> DescribeDelegationTokenResponse:
    """The tokens of these owners that are the client's own: those that it owns, has requested or
    may renew. Others with DESCRIBE on the token or DESCRIBE_TOKENS on its owner."""
    _check_is_identified(context, services)
    secret_key = _secret_key(services)
    owners = None
    if request.owners is not None:
        owners = {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
    response = DescribeDelegationTokenResponse()
    if owners is not None and not owners:
        return response
    tokens = services.image.delegation_tokens
    async for token in iterate_cooperatively(tokens.values(), context):
        if owners is not None and owners.isdisjoint(token.concerned):
            continue
        if token.is_of(secret_key) and _may_describe(token, context, services):
            response.tokens.append(_described(token, secret_key))
    return response


def _may_describe(token: DelegationToken, context: RequestContext, services: Services) -> bool:
    authorizer = services.authorizer
    return (
        context.principal in token.concerned
        or authorizer.is_allowed(
            context, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id
        )
        or authorizer.is_allowed(
            context, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner
        )
    )


def _described(token: DelegationToken, secret_key: str) -> DescribedDelegationToken:
    owner_type, _, owner_name = token.owner.partition(":")
    requester_type, _, requester_name = token.requester.partition(":")
    return DescribedDelegationToken(
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp=token.issue_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac(secret_key, token.token_id),
        renewers=[
            TokenPrincipal(principal_type=_USER, principal_name=renewer.partition(":")[2])
            for renewer in token.renewers
        ],
    )


def _check_is_identified(context: RequestContext, services: Services) -> None:
    if not services.is_identified(context.connection_id):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def _secret_key(services: Services) -> str:
    """The key of this node. Raises ApiError if it has none."""
    settings = services.metadata.broker_settings().delegation_tokens
    if not settings.delegation_token_secret_key:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return settings.delegation_token_secret_key


def _known_digest(token_mac: bytes, services: Services) -> bytes:
    """What the controller knows the token by. Raises ApiError if the token was made with another
    secret key."""
    secret_key = _secret_key(services)
    digest = hmac_digest(token_mac)
    token = services.image.delegation_tokens.with_digest(digest)
    if token is not None and not token.is_of(secret_key):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return digest


def _new_token_id() -> str:
    """An id as Kafka makes them: none begins with a dash, for the tools' sake."""
    while True:
        token_id = uuid_to_text(secrets.token_bytes(16))
        if not token_id.startswith("-"):
            return token_id
