"""Delegation tokens: created, renewed, expired, and removed when they have expired (KIP-48).

What the command says of the time is what counts: the clock of the node that a client asked. The
lifetimes are the cluster's. The checks come in Kafka's order.
"""

from typing import Final

import msgspec

from odradek.cluster.controller.commands import (
    CreateDelegationToken,
    DelegationTokenReply,
    ExpireDelegationToken,
    RenewDelegationToken,
)
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.metadata.delegation_tokens import DelegationToken
from odradek.cluster.metadata.records import DelegationTokenChanged, DelegationTokenRemoved
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import NEVER

REMOVALS_MAX: Final = 1_000
"""Expired tokens that are removed in one entry of the log."""


def create_delegation_token(
    state: ControllerState, command: CreateDelegationToken
) -> ControllerResult:
    """Create a token. A command that comes twice gets the same reply."""
    existing = state.image.delegation_tokens.get(command.token.token_id)
    if existing is not None:
        return ControllerResult((), _reply(existing))
    settings = state.broker_settings.delegation_tokens
    lifetime_ms = settings.delegation_token_max_lifetime_ms
    if command.lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, command.lifetime_ms)
    issue_ms = command.token.issue_ms
    max_ms = _sum(issue_ms, lifetime_ms)
    expiry_ms = min(max_ms, _sum(issue_ms, settings.delegation_token_expiry_time_ms))
    token = msgspec.structs.replace(command.token, max_ms=max_ms, expiry_ms=expiry_ms)
    return _changed(token)


def renew_delegation_token(
    state: ControllerState, command: RenewDelegationToken
) -> ControllerResult:
    """Move the end of a token, which must not have expired, by its owner or a renewer."""
    token = _found(state, command.hmac_digest)
    if token.is_expired(command.now_ms):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    _check_may_change(token, command.principal)
    period_ms = state.broker_settings.delegation_tokens.delegation_token_expiry_time_ms
    if command.period_ms > 0:
        period_ms = min(period_ms, command.period_ms)
    return _moved(token, command.now_ms, period_ms)


def expire_delegation_token(
    state: ControllerState, command: ExpireDelegationToken
) -> ControllerResult:
    """Move the end of a token, or remove it, by its owner or a renewer. Only to remove one, it may
    have expired."""
    token = _found(state, command.hmac_digest)
    _check_may_change(token, command.principal)
    if command.period_ms < 0:
        reply = DelegationTokenReply(token.issue_ms, command.now_ms, token.max_ms)
        return ControllerResult((DelegationTokenRemoved(token.token_id),), reply)
    if token.is_expired(command.now_ms):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    return _moved(token, command.now_ms, command.period_ms)


def remove_expired_tokens(state: ControllerState, now_ms: int) -> list[DelegationTokenRemoved]:
    """The removals of tokens that have expired by then, at most REMOVALS_MAX."""
    removed = []
    for token in state.image.delegation_tokens.values():
        if token.is_expired(now_ms):
            removed.append(DelegationTokenRemoved(token.token_id))
            if len(removed) == REMOVALS_MAX:
                break
    return removed


def check_interval_ms(state: ControllerState) -> int:
    """How often expired tokens are removed."""
    return state.broker_settings.delegation_tokens.delegation_token_expiry_check_interval_ms


def _found(state: ControllerState, digest: bytes) -> DelegationToken:
    token = state.image.delegation_tokens.with_digest(digest)
    if token is None:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return token


def _check_may_change(token: DelegationToken, principal: str) -> None:
    if not token.may_change(principal):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _moved(token: DelegationToken, now_ms: int, period_ms: int) -> ControllerResult:
    expiry_ms = min(token.max_ms, _sum(now_ms, period_ms))
    return _changed(msgspec.structs.replace(token, expiry_ms=expiry_ms))


def _changed(token: DelegationToken) -> ControllerResult:
    return ControllerResult((DelegationTokenChanged(token),), _reply(token))


def _reply(token: DelegationToken) -> DelegationTokenReply:
    return DelegationTokenReply(token.issue_ms, token.expiry_ms, token.max_ms)


def _sum(time_ms: int, period_ms: int) -> int:
    return min(time_ms + period_ms, NEVER)
