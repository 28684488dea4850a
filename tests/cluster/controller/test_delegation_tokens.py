"""Delegation tokens in the controller: lifetimes, who may change a token, expired ones (KIP-48)."""

import msgspec
import pytest

from odradek.cluster.controller.commands import (
    CreateDelegationToken,
    DelegationTokenReply,
    ExpireDelegationToken,
    RenewDelegationToken,
)
from odradek.cluster.controller.delegation_tokens import REMOVALS_MAX
from odradek.cluster.metadata.records import ConfigChanged, DelegationTokenChanged
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import NEVER
from tests.support.controller_harness import ControllerHarness
from tests.support.token_samples import token_of

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BROKER = 4
NOW_MS = 1_700_000_000_000
TOKEN = token_of(renewers=("User:bob",), issue_ms=NOW_MS)


@pytest.fixture
def harness() -> ControllerHarness:
    return ControllerHarness()


def create(harness: ControllerHarness, lifetime_ms: int = -1) -> DelegationTokenReply:
    reply = harness.do(CreateDelegationToken(TOKEN, lifetime_ms))
    assert isinstance(reply, DelegationTokenReply)
    return reply


def renew(
    harness: ControllerHarness,
    period_ms: int = -1,
    *,
    by: str = "User:alice",
    now_ms: int = NOW_MS,
    digest: bytes = TOKEN.hmac_digest,
) -> int:
    """When the token ends after that."""
    reply = harness.do(RenewDelegationToken(digest, by, period_ms, now_ms))
    assert isinstance(reply, DelegationTokenReply)
    assert harness.image.delegation_tokens[TOKEN.token_id].expiry_ms == reply.expiry_ms
    return reply.expiry_ms


def expire(
    harness: ControllerHarness,
    period_ms: int,
    *,
    by: str = "User:alice",
    now_ms: int = NOW_MS,
    digest: bytes = TOKEN.hmac_digest,
) -> int:
    reply = harness.do(ExpireDelegationToken(digest, by, period_ms, now_ms))
    assert isinstance(reply, DelegationTokenReply)
    return reply.expiry_ms


@pytest.mark.parametrize(
    ("asked_ms", "expiry_ms", "max_ms"),
    [
        (-1, DAY_MS, 7 * DAY_MS),
        (0, DAY_MS, 7 * DAY_MS),
        (HOUR_MS, HOUR_MS, HOUR_MS),
        (2 * DAY_MS, DAY_MS, 2 * DAY_MS),
        (NEVER, DAY_MS, 7 * DAY_MS),
    ],
)
def test_a_token_lives_as_long_as_asked_and_allowed(
    harness: ControllerHarness, asked_ms: int, expiry_ms: int, max_ms: int
) -> None:
    reply = create(harness, asked_ms)
    assert reply == DelegationTokenReply(NOW_MS, NOW_MS + expiry_ms, NOW_MS + max_ms)
    token = harness.image.delegation_tokens[TOKEN.token_id]
    assert (token.expiry_ms, token.max_ms) == (reply.expiry_ms, reply.max_ms)
    assert token.credentials == TOKEN.credentials


def test_the_lifetimes_are_those_of_the_cluster(harness: ControllerHarness) -> None:
    for key, value in (("max.lifetime.ms", "5000"), ("expiry.time.ms", "1000")):
        harness.write(ConfigChanged(BROKER, "", f"delegation.token.{key}", value))
    assert create(harness) == DelegationTokenReply(NOW_MS, NOW_MS + 1_000, NOW_MS + 5_000)
    assert renew(harness, now_ms=NOW_MS + 500) == NOW_MS + 1_500


def test_lifetimes_do_not_overflow(harness: ControllerHarness) -> None:
    for key in ("max.lifetime.ms", "expiry.time.ms"):
        harness.write(ConfigChanged(BROKER, "", f"delegation.token.{key}", str(NEVER)))
    assert create(harness) == DelegationTokenReply(NOW_MS, NEVER, NEVER)
    assert expire(harness, NEVER) == NEVER


def test_a_command_that_comes_twice_creates_one_token(harness: ControllerHarness) -> None:
    assert create(harness) == create(harness, HOUR_MS)
    assert len(harness.image.delegation_tokens) == 1


def test_a_token_is_renewed_by_its_owner_and_renewers_up_to_its_longest_life(
    harness: ControllerHarness,
) -> None:
    create(harness)
    assert renew(harness, HOUR_MS) == NOW_MS + HOUR_MS
    assert renew(harness, by="User:bob") == NOW_MS + DAY_MS
    assert renew(harness, 30 * DAY_MS) == NOW_MS + DAY_MS
    later_ms = NOW_MS + 12 * HOUR_MS
    for day in range(6):
        renew(harness, now_ms=later_ms + day * 23 * HOUR_MS)
    assert renew(harness, now_ms=later_ms + 6 * 23 * HOUR_MS) == NOW_MS + 7 * DAY_MS


@pytest.mark.parametrize("command", [RenewDelegationToken, ExpireDelegationToken])
def test_what_cannot_be_changed(
    harness: ControllerHarness, command: type[RenewDelegationToken | ExpireDelegationToken]
) -> None:
    create(harness)
    digest, owner = TOKEN.hmac_digest, "User:alice"
    for refused, code in (
        (command(b"another", owner, HOUR_MS, NOW_MS), ErrorCode.DELEGATION_TOKEN_NOT_FOUND),
        (
            command(digest, "User:carol", HOUR_MS, NOW_MS),
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
        ),
        (command(digest, owner, HOUR_MS, NOW_MS + DAY_MS + 1), ErrorCode.DELEGATION_TOKEN_EXPIRED),
    ):
        with pytest.raises(ApiError) as caught:
            harness.do(refused)
        assert caught.value.code == code
    last = harness.do(command(digest, owner, HOUR_MS, NOW_MS + DAY_MS))
    assert isinstance(last, DelegationTokenReply)
    assert last.expiry_ms == NOW_MS + DAY_MS + HOUR_MS


def test_kafka_checks_the_age_before_the_owner_to_renew_and_after_it_to_expire(
    harness: ControllerHarness,
) -> None:
    create(harness)
    late_ms = NOW_MS + 2 * DAY_MS
    with pytest.raises(ApiError) as caught:
        renew(harness, by="User:carol", now_ms=late_ms)
    assert caught.value.code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    with pytest.raises(ApiError) as caught:
        expire(harness, HOUR_MS, by="User:carol", now_ms=late_ms)
    assert caught.value.code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def test_a_negative_period_removes_a_token_even_if_it_has_expired(
    harness: ControllerHarness,
) -> None:
    create(harness)
    assert expire(harness, 0) == NOW_MS
    late_ms = NOW_MS + DAY_MS
    assert expire(harness, -1, by="User:bob", now_ms=late_ms) == late_ms
    assert not harness.image.delegation_tokens
    with pytest.raises(ApiError) as caught:
        expire(harness, -1)
    assert caught.value.code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_expired_tokens_are_removed_at_the_interval(harness: ControllerHarness) -> None:
    harness.controller.activate(harness.now_ms)
    begun_ms = harness.now_ms
    ends_ms = begun_ms + 90 * 60_000
    for token_id, expiry_ms in (("a", begun_ms), ("b", ends_ms), ("c", begun_ms + DAY_MS)):
        token = token_of(token_id, max_ms=begun_ms + DAY_MS, expiry_ms=expiry_ms)
        harness.write(DelegationTokenChanged(token))
    assert harness.controller.tick(begun_ms + HOUR_MS - 1, begun_ms + HOUR_MS - 1) == ()
    left = []
    for hours in (1, 2, 3):
        harness.now_ms = begun_ms + hours * HOUR_MS
        due_ms = harness.controller.next_deadline_ms()
        assert due_ms is not None
        assert due_ms <= harness.now_ms
        harness.tick()
        left.append(sorted(harness.image.delegation_tokens))
    assert left == [["b", "c"], ["c"], ["c"]]


def test_many_expired_tokens_are_removed_in_turns(harness: ControllerHarness) -> None:
    harness.controller.activate(harness.now_ms)
    for number in range(REMOVALS_MAX + 5):
        harness.write(DelegationTokenChanged(msgspec.structs.replace(TOKEN, token_id=f"t{number}")))
    harness.now_ms += HOUR_MS
    assert [harness.tick() for _ in range(3)] == [REMOVALS_MAX, 5, 0]
