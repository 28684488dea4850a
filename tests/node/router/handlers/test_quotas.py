"""DescribeClientQuotas and AlterClientQuotas: rights, failures, limits, and throttled fetches.

What they answer otherwise is compared with Kafka in tests/e2e/test_client_quotas.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.node.router import cooperative_iteration
from odradek.node.router.handlers import quotas
from odradek.node.router.handlers.quotas import (
    CHANGES_MAX,
    HOST_NAMES_MAX,
    handle_alter_client_quotas,
    handle_describe_client_quotas,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    DescribeClientQuotasRequest,
    EntityData,
    OpData,
)
from tests.support.router_harness import RouterHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    yield harness
    harness.close()


def entry(kind: str, name: str | None, **values: float) -> AlterClientQuotasRequestEntryData:
    return AlterClientQuotasRequestEntryData(
        entity=[EntityData(entity_type=kind, entity_name=name)],
        ops=[OpData(key=key, value=value) for key, value in values.items()],
    )


def codes(harness: RouterHarness, *entries: AlterClientQuotasRequestEntryData) -> set[int]:
    request = AlterClientQuotasRequest(entries=list(entries))
    answer = harness.call(handle_alter_client_quotas, request)
    return {result.error_code for result in answer.entries}


@pytest.mark.parametrize("version", [0, 1])
def test_what_was_set_is_described(harness: RouterHarness, version: int) -> None:
    request = AlterClientQuotasRequest(entries=[entry("user", None, producer_byte_rate=5.0)])
    answer = harness.call(handle_alter_client_quotas, request, version)
    assert [result.error_code for result in answer.entries] == [0]
    described = harness.call(handle_describe_client_quotas, DescribeClientQuotasRequest(), version)
    assert described.entries is not None
    ((component,), (value,)) = (described.entries[0].entity, described.entries[0].values)
    assert (component.entity_type, component.entity_name) == ("user", None)
    assert (value.key, value.value) == ("producer_byte_rate", 5.0)


def test_describing_needs_describe_configs_on_the_cluster(harness: RouterHarness) -> None:
    harness.deny(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    with pytest.raises(ApiError) as caught:
        harness.call(handle_describe_client_quotas, DescribeClientQuotasRequest())
    assert caught.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_altering_needs_alter_configs_on_the_cluster(harness: RouterHarness) -> None:
    harness.deny(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    entries = [entry("user", name, producer_byte_rate=5.0) for name in ("a", "b")]
    assert codes(harness, *entries) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert not harness.image.client_quotas


def test_every_entity_has_the_error_of_the_controller(harness: RouterHarness) -> None:
    harness.link.failure = ApiError(ErrorCode.REQUEST_TIMED_OUT, "late")
    entries = [entry("user", name, producer_byte_rate=5.0) for name in ("a", "b")]
    assert codes(harness, *entries) == {ErrorCode.REQUEST_TIMED_OUT}


def test_the_size_of_a_request_is_limited(harness: RouterHarness) -> None:
    entries = [
        entry("user", f"user-{number}", producer_byte_rate=5.0) for number in range(CHANGES_MAX + 1)
    ]
    assert codes(harness, *entries) == {ErrorCode.POLICY_VIOLATION}
    hosts = [
        entry("ip", f"host-{number}.invalid", connection_creation_rate=1.0)
        for number in range(HOST_NAMES_MAX + 1)
    ]
    assert codes(harness, *hosts) == {ErrorCode.POLICY_VIOLATION}


def test_an_entity_is_changed_by_one_command_whatever_their_number(
    harness: RouterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cooperative_iteration, "COMMAND_ITEMS_MAX", 1)
    entries = [entry("user", name, producer_byte_rate=5.0) for name in ("a", "b", "a", "c")]
    answer = harness.call(handle_alter_client_quotas, AlterClientQuotasRequest(entries=entries))
    results = {each.entity[0].entity_name: each.error_code for each in answer.entries}
    # Named twice, which the controller must see.
    assert results == {"a": ErrorCode.INVALID_REQUEST, "b": 0, "c": 0}
    assert len(harness.image.client_quotas) == 2
    assert len(harness.link.timeouts_ms) == 3


def test_hosts_that_are_not_resolved_in_time_are_refused(
    harness: RouterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "RESOLUTION_S_MAX", 0.0)
    named = entry("ip", "localhost", connection_creation_rate=1.0)
    assert codes(harness, named) == {ErrorCode.INVALID_REQUEST}
    assert codes(harness, entry("ip", "127.0.0.1", connection_creation_rate=1.0)) == {0}
