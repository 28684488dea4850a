"""CreateAcls and DeleteAcls: which bindings there are afterwards, and why others are refused."""

import msgspec
import pytest

from odradek.cluster.controller.acls import filter_error
from odradek.cluster.controller.commands import (
    AclsReply,
    CreateAcls,
    DeleteAcls,
    DeletedAclsReply,
)
from odradek.cluster.metadata.acls import AclBinding, AclBindingFilter
from odradek.protocol.errors import ErrorCode
from tests.support.controller_harness import ControllerHarness

READ_T = AclBinding(2, 3, "t", "User:bob", "*", 3, 3)
WRITE_T = AclBinding(2, 3, "t", "User:bob", "*", 4, 3)


def create(harness: ControllerHarness, *bindings: AclBinding) -> list[tuple[int, str | None]]:
    reply = harness.do(CreateAcls(bindings))
    assert isinstance(reply, AclsReply)
    return [(result.error_code, result.error_message) for result in reply.results]


def delete(harness: ControllerHarness, *bindings: AclBinding) -> tuple[bool, ...]:
    reply = harness.do(DeleteAcls(bindings))
    assert isinstance(reply, DeletedAclsReply)
    return reply.were_there


def test_bindings_are_created_once() -> None:
    harness = ControllerHarness()
    assert create(harness, READ_T, WRITE_T, READ_T) == [(0, None)] * 3
    assert set(harness.image.acls) == {READ_T, WRITE_T}
    before = harness.image.acls
    assert create(harness, READ_T) == [(0, None)]
    assert harness.image.acls is before


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ((4, 3, "c", "User:a", "*", 3, 3), "The only valid name for the CLUSTER resource is"),
        ((2, 3, "", "User:a", "*", 3, 3), "Invalid empty resource name"),
        ((1, 3, "t", "User:a", "*", 3, 3), "Invalid resourceType ANY"),
        ((0, 3, "t", "User:a", "*", 3, 3), "Invalid resourceType UNKNOWN"),
        ((99, 3, "t", "User:a", "*", 3, 3), "Invalid resourceType UNKNOWN"),
        ((2, 2, "t", "User:a", "*", 3, 3), "Invalid patternType MATCH"),
        ((2, 1, "t", "User:a", "*", 3, 3), "Invalid patternType ANY"),
        ((2, 3, "t", "User:a", "*", 1, 3), "Invalid operation ANY"),
        ((2, 3, "t", "User:a", "*", 99, 3), "Invalid operation UNKNOWN"),
        ((2, 3, "t", "User:a", "*", 3, 1), "Invalid permissionType ANY"),
        ((2, 3, "t", "bob", "*", 3, 3), "Could not parse principal from `bob`"),
    ],
)
def test_a_binding_that_cannot_be_is_refused_and_others_are_created(
    binding: tuple[int, int, str, str, str, int, int], message: str
) -> None:
    harness = ControllerHarness()
    refused, created = create(harness, AclBinding(*binding), READ_T)
    assert refused[0] == ErrorCode.INVALID_REQUEST
    assert (refused[1] or "").startswith(message)
    assert created == (0, None)
    assert set(harness.image.acls) == {READ_T}


def test_bindings_are_deleted_and_others_were_not_there() -> None:
    harness = ControllerHarness()
    create(harness, READ_T, WRITE_T)
    assert delete(harness, READ_T, READ_T) == (True, True)
    assert set(harness.image.acls) == {WRITE_T}
    before = harness.image.acls
    assert delete(harness, READ_T) == (False,)
    assert delete(harness) == ()
    assert harness.image.acls is before


@pytest.mark.parametrize("field", ["resource_type", "pattern_type", "operation", "permission_type"])
@pytest.mark.parametrize("value", [-1, 0, 99])
def test_a_filter_of_a_newer_release_is_an_error(field: str, value: int) -> None:
    wanted = msgspec.structs.replace(AclBindingFilter(), **{field: value})
    assert filter_error(wanted) in ("Unknown patternFilter.", "Unknown entryFilter.")
    assert filter_error(AclBindingFilter()) is None
