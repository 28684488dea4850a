"""CreateAcls and DeleteAcls: which bindings there are afterwards, and why others are refused."""

import msgspec
import pytest

from odradek.cluster.controller import acls
from odradek.cluster.controller.commands import (
    AclsReply,
    CreateAcls,
    DeleteAcls,
    DeletedAclsReply,
    DeletedAclsResult,
)
from odradek.cluster.metadata.acls import AclBinding, AclBindingFilter
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.controller_harness import ControllerHarness

READ_T = AclBinding(2, 3, "t", "User:bob", "*", 3, 3)
WRITE_T = AclBinding(2, 3, "t", "User:bob", "*", 4, 3)


def create(harness: ControllerHarness, *bindings: AclBinding) -> list[tuple[int, str | None]]:
    reply = harness.do(CreateAcls(bindings))
    assert isinstance(reply, AclsReply)
    return [(result.error_code, result.error_message) for result in reply.results]


def delete(harness: ControllerHarness, *filters: AclBindingFilter) -> tuple[DeletedAclsResult, ...]:
    reply = harness.do(DeleteAcls(filters))
    assert isinstance(reply, DeletedAclsReply)
    return reply.results


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


def test_filters_delete_what_they_find_and_say_so() -> None:
    harness = ControllerHarness()
    create(harness, READ_T, WRITE_T)
    by_name, by_operation, none, unknown = delete(
        harness,
        AclBindingFilter(2, 3, "t", operation=3),
        AclBindingFilter(operation=3),
        AclBindingFilter(3),
        AclBindingFilter(operation=0),
    )
    assert by_name.deleted == by_operation.deleted == (READ_T,)
    assert none == DeletedAclsResult()
    assert unknown == DeletedAclsResult(ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")
    assert set(harness.image.acls) == {WRITE_T}


@pytest.mark.parametrize("field", ["resource_type", "pattern_type", "operation", "permission_type"])
@pytest.mark.parametrize("value", [-1, 0, 99])
def test_a_filter_of_a_newer_release_finds_nothing(field: str, value: int) -> None:
    harness = ControllerHarness()
    create(harness, READ_T)
    [result] = delete(harness, msgspec.structs.replace(AclBindingFilter(), **{field: value}))
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert len(harness.image.acls) == 1


def test_a_request_changes_no_more_than_kafkas_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = ControllerHarness()
    create(harness, READ_T, WRITE_T)
    monkeypatch.setattr(acls, "RECORDS_MAX", 1)
    with pytest.raises(ApiError) as refused:
        create(harness, *(AclBinding(2, 3, name, "User:a", "*", 3, 3) for name in ("a", "b")))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    too_many, one = delete(harness, AclBindingFilter(), AclBindingFilter(operation=3))
    assert too_many.error_code == ErrorCode.POLICY_VIOLATION
    assert one.deleted == (READ_T,)
    assert set(harness.image.acls) == {WRITE_T}
