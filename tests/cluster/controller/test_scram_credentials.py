"""AlterUserScramCredentials: Kafka's checks, and users whose changes stay together (KIP-554)."""

import pytest

from odradek.cluster.controller.commands import (
    AlterScramCredentials,
    DeleteScramCredential,
    ScramCredentialsReply,
    SetScramCredential,
)
from odradek.cluster.metadata.scram import ScramCredential, ScramUser
from odradek.protocol.errors import ErrorCode
from tests.support.controller_harness import ControllerHarness

SHA_256, SHA_512 = 1, 2
CREDENTIAL = ScramCredential(b"salt", b"stored", b"server", 4096)


@pytest.fixture
def harness() -> ControllerHarness:
    return ControllerHarness()


def change(
    harness: ControllerHarness, *changes: DeleteScramCredential | SetScramCredential
) -> dict[str, int]:
    """The error code of each user, after all of the changes."""
    reply = harness.do(
        AlterScramCredentials(
            tuple(each for each in changes if isinstance(each, DeleteScramCredential)),
            tuple(each for each in changes if isinstance(each, SetScramCredential)),
        )
    )
    assert isinstance(reply, ScramCredentialsReply)
    assert all(bool(each.error_message) == bool(each.error_code) for each in reply.results)
    codes = {each.user: each.error_code for each in reply.results}
    assert len(codes) == len(reply.results)
    return codes


def upsertion(
    user: str = "alice", mechanism: int = SHA_256, iterations: int = 4096
) -> SetScramCredential:
    return SetScramCredential(user, mechanism, iterations, CREDENTIAL)


def test_a_credential_is_set_replaced_and_deleted(harness: ControllerHarness) -> None:
    other = ScramCredential(b"salt2", b"stored2", b"server2", 8192)
    assert change(harness, upsertion(), upsertion(mechanism=SHA_512)) == {"alice": 0}
    assert change(harness, SetScramCredential("alice", SHA_256, 8192, other)) == {"alice": 0}
    assert harness.image.scram_credentials == {
        ScramUser("alice", SHA_256): other,
        ScramUser("alice", SHA_512): CREDENTIAL,
    }
    assert harness.restarted().scram_credentials == harness.image.scram_credentials
    assert change(harness, DeleteScramCredential("alice", SHA_256)) == {"alice": 0}
    assert list(harness.image.scram_credentials) == [ScramUser("alice", SHA_512)]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (upsertion(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(user=""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(user="x" * 1_025), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(user="a\0b"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (SetScramCredential("alice", SHA_256, 4096, None), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (DeleteScramCredential("alice", SHA_256), ErrorCode.RESOURCE_NOT_FOUND),
        (DeleteScramCredential("alice", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (DeleteScramCredential("", SHA_256), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_what_is_refused_leaves_other_users_alone(
    harness: ControllerHarness, wrong: DeleteScramCredential | SetScramCredential, code: int
) -> None:
    assert change(harness, wrong, upsertion(user="bob")) == {wrong.user: code, "bob": 0}
    assert list(harness.image.scram_credentials) == [ScramUser("bob", SHA_256)]


@pytest.mark.parametrize("iterations", [4096, 16_384])
def test_the_bounds_of_iterations_are_allowed(harness: ControllerHarness, iterations: int) -> None:
    assert change(harness, upsertion(iterations=iterations)) == {"alice": 0}


@pytest.mark.parametrize(
    "changes",
    [
        (upsertion(), upsertion()),
        (upsertion(), DeleteScramCredential("alice", SHA_256)),
        (upsertion(mechanism=SHA_512), upsertion(), upsertion()),
    ],
)
def test_one_credential_cannot_be_altered_twice(
    harness: ControllerHarness, changes: tuple[DeleteScramCredential | SetScramCredential, ...]
) -> None:
    assert change(harness, *changes) == {"alice": ErrorCode.DUPLICATE_RESOURCE}
    assert not harness.image.scram_credentials


def test_changes_of_one_user_stay_together(harness: ControllerHarness) -> None:
    change(harness, upsertion())
    codes = change(
        harness, DeleteScramCredential("alice", SHA_256), upsertion(mechanism=SHA_512, iterations=1)
    )
    assert codes == {"alice": ErrorCode.UNACCEPTABLE_CREDENTIAL}
    assert list(harness.image.scram_credentials) == [ScramUser("alice", SHA_256)]
