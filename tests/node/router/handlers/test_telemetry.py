"""GetTelemetrySubscriptions and PushTelemetry as requests of a router."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.router.handlers.api_versions import handle_api_versions
from odradek.node.router.handlers.telemetry import (
    handle_get_telemetry_subscriptions,
    handle_push_telemetry,
)
from odradek.protocol.compression import Codec, compress
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.metadata import ApiVersionsRequest
from odradek.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    PushTelemetryRequest,
)
from tests.support.otlp_samples import gauge, payload
from tests.support.router_harness import RouterHarness

METRICS = ConfigResourceType.CLIENT_METRICS


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    yield harness
    harness.close()


def subscribe(harness: RouterHarness) -> tuple[bytes, int, list[str]]:
    answer = harness.call(handle_get_telemetry_subscriptions, GetTelemetrySubscriptionsRequest())
    assert answer.error_code == ErrorCode.NONE
    return answer.client_instance_id, answer.subscription_id, answer.requested_metrics


def test_a_client_gets_an_id_and_no_metrics(harness: RouterHarness) -> None:
    (first, _, metrics), (second, _, _) = subscribe(harness), subscribe(harness)
    assert len({first, second, bytes(16)}) == 3
    assert metrics == []


@pytest.mark.parametrize(("name", "metrics"), [("java", ["a."]), ("go", [])])
def test_the_software_of_api_versions_is_matched(
    harness: RouterHarness, name: str, metrics: list[str]
) -> None:
    harness.controller.set_config(METRICS, "s", metrics="a.", match="client_software_name=java")
    harness.follow()
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    harness.call(handle_api_versions, request)
    assert subscribe(harness)[2] == metrics
    # The harness' connection is closed: nothing is known of the next one.
    harness.services.on_disconnected(0)
    assert subscribe(harness)[2] == []


def test_a_client_without_api_versions_is_unknown_software(harness: RouterHarness) -> None:
    match = "client_software_name=unknown,client_id=test,client_source_port=50000"
    harness.controller.set_config(METRICS, "s", metrics="a.", match=match)
    harness.follow()
    assert subscribe(harness)[2] == ["a."]


def test_what_is_pushed_is_there_before_the_answer(harness: RouterHarness) -> None:
    harness.controller.set_config(METRICS, "s", metrics="*")
    harness.follow()
    client, subscription, metrics = subscribe(harness)
    assert metrics == ["*"]
    request = PushTelemetryRequest(
        client_instance_id=client,
        subscription_id=subscription,
        compression_type=Codec.ZSTD,
        metrics=compress(Codec.ZSTD, payload(gauge("m", 1.5))),
    )
    assert harness.call(handle_push_telemetry, request).error_code == ErrorCode.NONE
    [_info, sample] = harness.services.telemetry.samples()
    assert (sample.name, sample.value, sample.labels[0]) == (
        "odradek_client_m",
        1.5,
        ("client_id", "test"),
    )
    with pytest.raises(ApiError) as refused:
        harness.call(handle_push_telemetry, request)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
