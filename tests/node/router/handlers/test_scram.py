"""The SCRAM credential APIs as clients see them (KIP-554)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.cluster.metadata.scram import (
    ScramMechanism,
    ScramUser,
    credential_of,
    salted_password,
)
from odradek.node.router import cooperative_iteration
from odradek.node.router.handlers.scram import (
    CHANGES_MAX,
    handle_alter_user_scram_credentials,
    handle_describe_user_scram_credentials,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from tests.support.router_harness import RouterHarness

SALT = b"0123456789abcdefghijklmnop"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    yield harness
    harness.close()


def upsertion(
    name: str,
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256,
    *,
    iterations: int = 4096,
    salt: bytes = SALT,
    salted: bytes | None = None,
) -> ScramCredentialUpsertion:
    if salted is None:
        salted = salted_password(mechanism, "secret", SALT, 4096)
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


def alter(
    harness: RouterHarness, *upsertions: ScramCredentialUpsertion, delete: tuple[str, ...] = ()
) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        upsertions=[*upsertions],
        deletions=[ScramCredentialDeletion(name=name, mechanism=1) for name in delete],
    )
    response = harness.call(handle_alter_user_scram_credentials, request, 0)
    return {result.user: result.error_code for result in response.results}


def test_a_user_is_changed_by_one_command_whatever_their_number(
    harness: RouterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cooperative_iteration, "COMMAND_ITEMS_MAX", 1)
    other = upsertion("alice", ScramMechanism.SCRAM_SHA_512)
    answered = alter(harness, upsertion("alice"), upsertion("bob"), other, delete=("bob", "eve"))
    # Bob is named twice with one mechanism, which the controller must see.
    expected = {
        "alice": 0,
        "bob": ErrorCode.DUPLICATE_RESOURCE,
        "eve": ErrorCode.RESOURCE_NOT_FOUND,
    }
    assert answered == expected
    assert len(harness.image.scram_credentials) == 2
    assert len(harness.link.timeouts_ms) == 3


def describe(
    harness: RouterHarness, users: list[str] | None = None
) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    request = DescribeUserScramCredentialsRequest(
        users=None if users is None else [UserName(name=name) for name in users]
    )
    response = harness.call(handle_describe_user_scram_credentials, request, 0)
    return {
        result.user: (
            result.error_code,
            [(each.mechanism, each.iterations) for each in result.credential_infos],
        )
        for result in response.results
    }


def test_credentials_are_set_described_and_deleted(harness: RouterHarness) -> None:
    both = [upsertion("alice", mechanism, iterations=4096) for mechanism in ScramMechanism]
    assert alter(harness, *both, upsertion("bob")) == {"alice": 0, "bob": 0}
    assert describe(harness) == {"alice": (0, [(1, 4096), (2, 4096)]), "bob": (0, [(1, 4096)])}
    assert describe(harness, []) == describe(harness)
    assert alter(harness, delete=("alice", "carol")) == {
        "alice": 0,
        "carol": ErrorCode.RESOURCE_NOT_FOUND,
    }
    assert describe(harness, ["alice"]) == {"alice": (0, [(2, 4096)])}


def test_keys_are_kept_and_not_the_salted_password(harness: RouterHarness) -> None:
    mechanism = ScramMechanism.SCRAM_SHA_256
    salted = salted_password(mechanism, "secret", SALT, 4096)
    alter(harness, upsertion("alice"))
    credential = harness.image.scram_credentials[ScramUser("alice", mechanism)]
    assert credential == credential_of(mechanism, salted, SALT, 4096)


def test_users_that_are_unknown_or_named_twice(harness: RouterHarness) -> None:
    alter(harness, upsertion("alice"))
    assert describe(harness, ["alice", "bob", "alice"]) == {
        "alice": (ErrorCode.DUPLICATE_RESOURCE, []),
        "bob": (ErrorCode.RESOURCE_NOT_FOUND, []),
    }


@pytest.mark.parametrize(
    "wrong",
    [
        upsertion("alice", salt=b""),
        upsertion("alice", salt=b"x" * 1_025),
        upsertion("alice", salted=b""),
        upsertion("alice", salted=b"x" * 64),
    ],
)
def test_bytes_that_make_no_credential(
    harness: RouterHarness, wrong: ScramCredentialUpsertion
) -> None:
    assert alter(harness, wrong) == {"alice": ErrorCode.UNACCEPTABLE_CREDENTIAL}


def test_a_request_is_bounded(harness: RouterHarness) -> None:
    answered = alter(harness, delete=("alice",) * (CHANGES_MAX + 1))
    assert answered == {"alice": ErrorCode.POLICY_VIOLATION}


def test_rights_on_the_cluster_are_needed(harness: RouterHarness) -> None:
    harness.deny(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    harness.deny(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    assert describe(harness, ["alice"]) == {"alice": (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])}
    answered = alter(harness, upsertion("alice"))
    assert answered == {"alice": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert not harness.image.scram_credentials
