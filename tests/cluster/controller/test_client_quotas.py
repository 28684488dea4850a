"""AlterClientQuotas: what it changes. Its error texts: tests/conformance/test_wire_quotas.py."""

import math

import pytest

from odradek.cluster.controller.commands import (
    AlterClientQuotas,
    ClientQuotasReply,
    QuotaChange,
    QuotaEntityChanges,
    QuotaEntityResult,
)
from odradek.cluster.metadata.client_quotas import QuotaEntity
from odradek.cluster.metadata.records import ClientQuotaChanged
from odradek.protocol.errors import ErrorCode
from tests.support.controller_harness import ControllerHarness

USER: QuotaEntity = (("user", "ann"),)
RATE = "producer_byte_rate"


def changes(entity: QuotaEntity, **values: float | None) -> QuotaEntityChanges:
    return QuotaEntityChanges(entity, tuple(QuotaChange(*item) for item in values.items()))


def alter(
    harness: ControllerHarness,
    *entries: QuotaEntityChanges,
    validate_only: bool = False,
    unresolved: tuple[str, ...] = (),
) -> tuple[QuotaEntityResult, ...]:
    reply = harness.do(AlterClientQuotas(entries, validate_only, unresolved))
    assert isinstance(reply, ClientQuotasReply)
    return reply.results


def test_quotas_are_set_changed_and_removed() -> None:
    harness = ControllerHarness()
    alter(harness, changes(USER, producer_byte_rate=1024.0, request_percentage=0.5))
    assert harness.image.client_quotas.of(USER) == {RATE: 1024.0, "request_percentage": 0.5}
    alter(harness, changes(USER, producer_byte_rate=2048.0, request_percentage=None))
    assert harness.image.client_quotas.of(USER) == {RATE: 2048.0}
    alter(harness, changes(USER, producer_byte_rate=None))
    assert not harness.image.client_quotas


def test_a_value_that_does_not_change_makes_no_record() -> None:
    harness = ControllerHarness()
    alter(harness, changes(USER, producer_byte_rate=1024.0))
    written = len(harness.records)
    alter(harness, changes(USER, producer_byte_rate=1024.0, consumer_byte_rate=None))
    assert len(harness.records) == written


def test_validate_only_changes_nothing() -> None:
    harness = ControllerHarness()
    written = len(harness.records)
    (result,) = alter(harness, changes(USER, producer_byte_rate=1024.0), validate_only=True)
    assert not result.error_code
    assert len(harness.records) == written


def test_an_entity_is_changed_as_a_whole_or_not_at_all() -> None:
    harness = ControllerHarness()
    bad, good = alter(
        harness,
        changes(USER, producer_byte_rate=1024.0, consumer_byte_rate=-1.0),
        changes((("client-id", "app"),), producer_byte_rate=1.0),
    )
    assert (bad.error_code, good.error_code) == (ErrorCode.INVALID_REQUEST, 0)
    records = [record for record in harness.records if type(record) is ClientQuotaChanged]
    assert records == [ClientQuotaChanged((("client-id", "app"),), RATE, 1.0)]


def test_an_entity_that_is_named_twice_is_not_changed_at_all() -> None:
    harness = ControllerHarness()
    (result,) = alter(
        harness, changes(USER, producer_byte_rate=1.0), changes(USER, producer_byte_rate=2.0)
    )
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert not harness.image.client_quotas


def test_a_host_that_could_not_be_resolved_is_refused() -> None:
    harness = ControllerHarness()
    entries = [changes((("ip", host),), connection_creation_rate=1.0) for host in ("a", "b")]
    refused, accepted = alter(harness, *entries, unresolved=("a",))
    assert refused.error_message == "a is not a valid IP or resolvable host."
    assert not accepted.error_code


@pytest.mark.parametrize("key", ["producer_byte_rate", "request_percentage"])
def test_what_is_no_number_is_refused(key: str) -> None:
    (result,) = alter(ControllerHarness(), changes(USER, **{key: math.nan}))
    assert result.error_code == ErrorCode.INVALID_REQUEST
