"""The delegation token APIs of one router: who may ask, limits, and secret keys (KIP-48).

What Apache Kafka answers is compared in tests/e2e/test_delegation_tokens.py.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.delegation_tokens import token_credentials, token_hmac
from odradek.cluster.metadata.records import DelegationTokenChanged
from odradek.node.router.handlers.tokens import (
    NAME_LENGTH_MAX,
    RENEWERS_MAX,
    handle_create_delegation_token,
    handle_describe_delegation_token,
    handle_expire_delegation_token,
    handle_renew_delegation_token,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from tests.support.router_harness import RouterHarness
from tests.support.token_samples import SECRET_KEY, token_of

HMAC = token_hmac(SECRET_KEY, "token-1")
HOUR_MS = 3_600_000


def harness_with(folder: Path, secret_key: str) -> RouterHarness:
    harness = RouterHarness(folder, static={"delegation.token.secret.key": secret_key})
    harness.services.is_identified = lambda _connection_id: True
    harness.principal = "User:alice"
    token = token_of(
        renewers=("User:bob",),
        issue_ms=harness.now_ms,
        max_ms=harness.now_ms + 2 * HOUR_MS,
        expiry_ms=harness.now_ms + HOUR_MS,
    )
    harness.controller.write(DelegationTokenChanged(token))
    harness.follow()
    return harness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = harness_with(tmp_path, SECRET_KEY)
    yield harness
    harness.close()


def create(harness: RouterHarness, owner: str | None = None, *renewers: str) -> int:
    """The error code of a request that does not succeed."""
    request = CreateDelegationTokenRequest(
        owner_principal_type="User" if owner else None,
        owner_principal_name=owner,
        renewers=[TokenPrincipal(principal_type="User", principal_name=each) for each in renewers],
    )
    response = harness.call(handle_create_delegation_token, request, 3)
    assert (response.issue_timestamp_ms, response.token_id, bytes(response.hmac)) == (-1, "", b"")
    return int(response.error_code)


def describe(harness: RouterHarness) -> list[bytes]:
    """The HMACs of the tokens that are described."""
    request = DescribeDelegationTokenRequest(owners=None)
    response = harness.call(handle_describe_delegation_token, request, 3)
    return [bytes(each.hmac) for each in response.tokens]


def change(harness: RouterHarness, token_mac: bytes = HMAC) -> tuple[int, int]:
    """Renew and expire: the codes of the errors."""
    renew = RenewDelegationTokenRequest(hmac=token_mac, renew_period_ms=HOUR_MS)
    expire = ExpireDelegationTokenRequest(hmac=token_mac, expiry_time_period_ms=HOUR_MS)
    try:
        renewed = harness.call(handle_renew_delegation_token, renew, 2).error_code
    except ApiError as error:
        renewed = error.code
    try:
        expired = harness.call(handle_expire_delegation_token, expire, 2).error_code
    except ApiError as error:
        expired = error.code
    return renewed, expired


def test_a_token_is_described_renewed_and_expired(harness: RouterHarness) -> None:
    assert describe(harness) == [HMAC]
    assert change(harness) == (0, 0)
    assert harness.image.delegation_tokens["token-1"].expiry_ms == harness.now_ms + HOUR_MS
    assert change(harness, b"unknown") == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND,) * 2


def test_a_client_that_has_not_said_who_it_is_is_refused(harness: RouterHarness) -> None:
    harness.services.is_identified = lambda _connection_id: False
    code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert create(harness) == code
    assert change(harness) == (code, code)
    with pytest.raises(ApiError) as caught:
        describe(harness)
    assert caught.value.code == code


def test_without_a_secret_key_there_are_no_tokens(tmp_path: Path) -> None:
    harness = harness_with(tmp_path, "")
    code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert create(harness) == code
    assert change(harness) == (code, code)
    with pytest.raises(ApiError) as caught:
        describe(harness)
    assert caught.value.code == code
    harness.close()


def test_tokens_of_another_secret_key_do_not_exist(tmp_path: Path) -> None:
    harness = harness_with(tmp_path, "another key")
    assert describe(harness) == []
    assert change(harness) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND,) * 2
    harness.close()


def test_a_token_of_another_user_needs_the_right_to_create_it(harness: RouterHarness) -> None:
    harness.authorizer.denied.add((AclOperation.CREATE_TOKENS, ResourceType.USER, "User:carol"))
    assert create(harness, "carol") == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    harness.authorizer.asked.clear()
    assert create(harness, "alice", "x" * (NAME_LENGTH_MAX + 1)) == ErrorCode.INVALID_REQUEST
    assert not harness.authorizer.asked


def test_a_token_has_not_too_many_renewers(harness: RouterHarness) -> None:
    assert create(harness, None, *["r"] * RENEWERS_MAX) == ErrorCode.INVALID_REQUEST


def test_others_are_described_with_either_right(harness: RouterHarness) -> None:
    harness.principal = "User:dave"
    of_token = AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "token-1"
    of_owner = AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:alice"
    harness.authorizer.denied = {of_token, of_owner}
    assert describe(harness) == []
    for one in (of_token, of_owner):
        harness.authorizer.denied = {one}
        assert describe(harness) == [HMAC]


def test_a_long_list_of_tokens_is_described(harness: RouterHarness) -> None:
    sample = token_of()
    for number in range(300):
        harness.controller.write(
            DelegationTokenChanged(msgspec.structs.replace(sample, token_id=f"t{number}"))
        )
    harness.follow()
    # Their digests are those of another token: none was made with this key.
    assert describe(harness) == [HMAC]


def test_a_token_is_created_with_credentials_that_prove_its_hmac(harness: RouterHarness) -> None:
    request = CreateDelegationTokenRequest(
        owner_principal_type="User",
        owner_principal_name="carol",
        renewers=[TokenPrincipal(principal_type="User", principal_name="bob")],
        max_lifetime_ms=HOUR_MS,
    )
    response = harness.call(handle_create_delegation_token, request, 3)
    assert response.error_code == ErrorCode.NONE
    assert response.expiry_timestamp_ms == response.max_timestamp_ms == harness.now_ms + HOUR_MS
    assert (response.principal_name, response.token_requester_principal_name) == ("carol", "alice")
    assert bytes(response.hmac) == token_hmac(SECRET_KEY, response.token_id)
    token = harness.image.delegation_tokens[response.token_id]
    assert (token.owner, token.requester) == ("User:carol", "User:alice")
    assert token.renewers == ("User:bob",)
    salts = [credential.salt for credential in token.credentials]
    assert len({*salts}) == 2
    assert token.credentials == token_credentials(bytes(response.hmac), salts)
