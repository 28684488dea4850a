"""DescribeAcls, CreateAcls, DeleteAcls: what a client is told, and that it holds at once."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from odradek.cluster.metadata.acls import AclBinding, AclBindingFilter
from odradek.cluster.metadata.authorizer_settings import STANDARD_AUTHORIZER
from odradek.node.router.authorizer import Authorizer
from odradek.node.router.dispatch import HANDLERS
from odradek.node.router.handlers import acls
from odradek.node.router.handlers.acls import (
    handle_create_acls,
    handle_delete_acls,
    handle_describe_acls,
)
from odradek.node.router.handlers.metadata import handle_metadata
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.acls import (
    AclCreation,
    AclFilter,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.group_harness import GroupHarness

F = TypeVar("F", AclFilter, DescribeAclsRequest)

READ_T = AclBinding(2, 3, "t", "User:bob", "*", 3, 3)
PREFIX = AclBinding(2, 4, "t", "User:bob", "*", 8, 3)
ADMIN = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:alice"}


def harness_with(folder: Path, static: dict[str, str]) -> GroupHarness:
    harness = GroupHarness(folder, static=static)
    harness.services.authorizer = Authorizer()
    harness.principal = "User:alice"
    harness.have_topic("t", 1)
    return harness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    with harness_with(tmp_path, ADMIN) as harness:
        yield harness


def create(harness: GroupHarness, *bindings: AclBinding, version: int | None = None) -> list[int]:
    creations = [
        AclCreation(
            resource_type=each.resource_type,
            resource_name=each.resource_name,
            resource_pattern_type=each.pattern_type,
            principal=each.principal,
            host=each.host,
            operation=each.operation,
            permission_type=each.permission_type,
        )
        for each in bindings
    ]
    answer = harness.call(handle_create_acls, CreateAclsRequest(creations=creations), version)
    return [result.error_code for result in answer.results]


def filter_like(kind: type[F], wanted: AclBindingFilter) -> F:
    return kind(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission_type,
    )


def describe(
    harness: GroupHarness, wanted: AclBindingFilter, version: int | None = None
) -> tuple[int, set[AclBinding]]:
    request = filter_like(DescribeAclsRequest, wanted)
    answer = harness.call(handle_describe_acls, request, version)
    found = [
        AclBinding(
            resource.resource_type,
            resource.pattern_type,
            resource.resource_name,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in answer.resources
        for acl in resource.acls
    ]
    assert len(found) == len(set(found))
    return answer.error_code, set(found)


def sees_topic(harness: GroupHarness, name: str = "t") -> int:
    harness.principal, before = "User:bob", harness.principal
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    [topic] = harness.call(handle_metadata, request).topics
    harness.principal = before
    return topic.error_code


def test_a_binding_is_in_force_with_the_response_and_until_it_is_deleted(
    harness: GroupHarness,
) -> None:
    assert sees_topic(harness) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert create(harness, READ_T) == [0]
    assert sees_topic(harness) == ErrorCode.NONE
    filters = [
        filter_like(AclFilter, AclBindingFilter(2, 3, "t")),
        AclFilter(resource_type_filter=0),
    ]
    answer = harness.call(handle_delete_acls, DeleteAclsRequest(filters=filters))
    deleted, refused = answer.filter_results
    [acl] = deleted.matching_acls
    assert (acl.resource_name, acl.principal, acl.operation) == ("t", "User:bob", 3)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert sees_topic(harness) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", range(4))
def test_every_version_describes_what_it_knows(harness: GroupHarness, version: int) -> None:
    assert create(harness, READ_T, version=version) == [0]
    assert create(harness, PREFIX) == [0]
    anything = AclBindingFilter(pattern_type=3 if version == 0 else 1)
    expected = {READ_T} if version == 0 else {READ_T, PREFIX}
    assert describe(harness, anything, version) == (0, expected)


def test_a_filter_with_unknown_numbers_is_refused(harness: GroupHarness) -> None:
    assert describe(harness, AclBindingFilter(operation=0))[0] == ErrorCode.INVALID_REQUEST
    assert describe(harness, AclBindingFilter(99))[0] == ErrorCode.INVALID_REQUEST


def test_only_who_may_alter_the_cluster_changes_bindings(harness: GroupHarness) -> None:
    harness.principal = "User:bob"
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert create(harness, READ_T, PREFIX) == [denied, denied]
    assert describe(harness, AclBindingFilter()) == (denied, set())
    request = DeleteAclsRequest(filters=[AclFilter()])
    [result] = harness.call(handle_delete_acls, request).filter_results
    assert result.error_code == denied
    assert not harness.image.acls


def test_without_an_authorizer_bindings_are_refused(tmp_path: Path) -> None:
    with harness_with(tmp_path, {}) as harness:
        off = ErrorCode.SECURITY_DISABLED
        assert create(harness, READ_T) == [off]
        assert describe(harness, AclBindingFilter()) == (off, set())
        request = DeleteAclsRequest(filters=[AclFilter()])
        [result] = harness.call(handle_delete_acls, request).filter_results
        assert result.error_code == off
        assert result.error_message == "No Authorizer is configured."


def test_a_request_with_too_many_items_fails_for_each_of_them(
    harness: GroupHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acls, "CREATED_MAX", 1)
    monkeypatch.setattr(acls, "FILTERS_MAX", 1)
    assert create(harness, READ_T, PREFIX) == [ErrorCode.POLICY_VIOLATION] * 2
    request = DeleteAclsRequest(filters=[AclFilter(), AclFilter()])
    results = harness.call(handle_delete_acls, request).filter_results
    assert [result.error_code for result in results] == [ErrorCode.POLICY_VIOLATION] * 2


def test_the_apis_are_served() -> None:
    assert {ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS} <= HANDLERS.keys()
