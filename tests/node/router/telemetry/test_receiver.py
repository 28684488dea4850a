"""The receiver: subscriptions from the metadata, pushes that are decompressed and decoded."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from odradek.cluster.metadata.delta import image_after
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ConfigChanged
from odradek.node.router.connected_clients import ConnectedClient
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.telemetry import otlp
from odradek.node.router.telemetry.receiver import (
    DECOMPRESSED_RATIO_MAX,
    RESERVED_IDS,
    WAITING_MAX,
    TelemetryReceiver,
)
from odradek.protocol.compression import Codec, compress
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
)
from tests.support.otlp_samples import counter, gauge, payload

CLIENT = ConnectedClient("c", "java", "4.3", "127.0.0.1", 50_000, 0)
NEW_ID = bytes(range(16))
INTERVAL_MS = 1_000
BYTES_MAX = 4_096
METRICS = payload(counter("org.apache.kafka.producer.record.send.total", 5), group_id="g")


class Client:
    """One client instance that talks to a receiver."""

    def __init__(self) -> None:
        self.now_ms = 0
        image = image_after(
            MetadataImage.empty(),
            [
                ConfigChanged(ConfigResourceType.CLIENT_METRICS, "all", key, value)
                for key, value in (("metrics", "*"), ("interval.ms", str(INTERVAL_MS)))
            ],
            1,
        )
        self.metadata = MetadataCache(0, {"telemetry.max.bytes": str(BYTES_MAX)}, image)
        self.receiver = TelemetryReceiver(self.metadata, lambda: self.now_ms, lambda: NEW_ID)

    def subscribe(self, instance_id: bytes = bytes(16)) -> GetTelemetrySubscriptionsResponse:
        request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
        return self.receiver.subscribe(request, CLIENT, 1)

    def request(
        self, metrics: bytes, codec: int, instance_id: bytes, *, last: bool = False
    ) -> PushTelemetryRequest:
        instance = self.receiver.instances.get(instance_id)
        return PushTelemetryRequest(
            client_instance_id=instance_id,
            subscription_id=0 if instance is None else instance.subscription.subscription_id,
            compression_type=codec,
            metrics=metrics,
            terminating=last,
        )

    async def push(
        self,
        metrics: bytes = METRICS,
        codec: int = Codec.NONE,
        instance_id: bytes = NEW_ID,
        *,
        last: bool = False,
    ) -> ErrorCode:
        request = self.request(metrics, codec, instance_id, last=last)
        try:
            await self.receiver.push(request, CLIENT, 1)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    def values(self) -> dict[str, float]:
        return {sample.name: sample.value for sample in self.receiver.samples()}


@pytest.fixture
def client() -> Client:
    client = Client()
    client.subscribe()
    return client


def run(coroutine: Coroutine[Any, Any, ErrorCode]) -> ErrorCode:
    return asyncio.run(coroutine)


def test_the_subscription_is_as_kafka_answers_it() -> None:
    answer = Client().subscribe()
    assert answer.client_instance_id == NEW_ID
    assert answer.accepted_compression_types == [4, 3, 1, 2]
    assert answer.push_interval_ms == INTERVAL_MS
    assert answer.telemetry_max_bytes == BYTES_MAX
    assert answer.delta_temporality is True
    assert answer.requested_metrics == ["*"]
    assert Client().subscribe(bytes(15) + b"\x07").client_instance_id == bytes(15) + b"\x07"


def test_no_id_that_is_given_out_begins_with_a_dash() -> None:
    client = Client()
    ids = iter([b"\xf8" + bytes(15), bytes(16), b"\xfb" + bytes(15), NEW_ID])
    client.receiver = TelemetryReceiver(client.metadata, lambda: 0, lambda: next(ids))
    assert client.subscribe().client_instance_id == NEW_ID


@pytest.mark.parametrize("codec", Codec)
def test_metrics_of_all_codecs_are_kept(client: Client, codec: Codec) -> None:
    assert run(client.push(compress(codec, METRICS), codec)) is ErrorCode.NONE
    assert client.values() == {
        "odradek_telemetry_client_info": 1.0,
        "odradek_client_producer_record_send_total": 5.0,
    }


def test_a_push_without_metrics_is_accepted(client: Client) -> None:
    assert run(client.push(b"", Codec.ZSTD)) is ErrorCode.NONE
    assert client.values() == {}


@pytest.mark.parametrize("instance_id", RESERVED_IDS)
def test_reserved_ids_are_refused(client: Client, instance_id: bytes) -> None:
    assert run(client.push(instance_id=instance_id)) is ErrorCode.INVALID_REQUEST


def test_an_unknown_codec_is_refused(client: Client) -> None:
    assert run(client.push(codec=9)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert client.subscribe(NEW_ID).error_code == 0


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.SNAPPY, Codec.ZSTD])
def test_what_is_no_compressed_otlp_is_an_invalid_record(client: Client, codec: Codec) -> None:
    assert run(client.push(b"\xff" * 50, codec)) is ErrorCode.INVALID_RECORD
    client.now_ms += INTERVAL_MS
    assert run(client.push(compress(codec, b"\xff" * 50), codec)) is ErrorCode.INVALID_RECORD
    assert client.values() == {}


def test_metrics_over_the_limit_are_too_large(client: Client) -> None:
    assert run(client.push(bytes(BYTES_MAX + 1))) is ErrorCode.TELEMETRY_TOO_LARGE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD, Codec.LZ4])
def test_a_bomb_is_too_large(client: Client, codec: Codec) -> None:
    bomb = compress(codec, bytes(BYTES_MAX * DECOMPRESSED_RATIO_MAX + 1))
    assert len(bomb) < BYTES_MAX
    assert run(client.push(bomb, codec)) is ErrorCode.TELEMETRY_TOO_LARGE


def test_too_many_points_are_too_large(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "POINTS_MAX", 1)
    metrics = payload(gauge("a", 1.0), gauge("b", 1.0))
    assert run(client.push(metrics)) is ErrorCode.TELEMETRY_TOO_LARGE


def test_a_new_limit_is_in_force_at_once(client: Client) -> None:
    before = client.metadata.image
    change = ConfigChanged(ConfigResourceType.BROKER, "0", "telemetry.max.bytes", "10")
    client.metadata.image = image_after(before, [change], 2)
    assert run(client.push()) is ErrorCode.TELEMETRY_TOO_LARGE
    client.now_ms += INTERVAL_MS
    assert client.subscribe(NEW_ID).telemetry_max_bytes == 10


def test_a_subscription_that_is_removed_ends_the_pushes(client: Client) -> None:
    changes = [
        ConfigChanged(ConfigResourceType.CLIENT_METRICS, "all", key, None)
        for key in ("metrics", "interval.ms")
    ]
    client.metadata.image = image_after(client.metadata.image, changes, 2)
    assert run(client.push()) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert client.subscribe(NEW_ID).requested_metrics == []


def test_a_client_that_ends_is_kept_for_the_next_scrape(client: Client) -> None:
    assert run(client.push(last=True)) is ErrorCode.NONE
    assert run(client.push()) is ErrorCode.INVALID_REQUEST
    client.receiver.remove_connection(1)
    assert len(client.receiver.instances) == 0
    assert client.values()["odradek_client_producer_record_send_total"] == 5.0


def test_pushes_are_counted_by_their_answer(client: Client) -> None:
    run(client.push())
    run(client.push())
    assert client.receiver.push_counts == {"NONE": 1, "THROTTLING_QUOTA_EXCEEDED": 1}


def test_pushes_of_a_client_are_kept_in_their_order(client: Client) -> None:
    """The last one is short, and decoded before the first if nothing prevents it."""
    gauges = (gauge(f"m{number}", 1.0) for number in range(700))
    long = compress(Codec.ZSTD, payload(*gauges))

    async def push_both() -> list[ErrorCode]:
        last = client.push(METRICS, last=True)
        return [*await asyncio.gather(client.push(long, Codec.ZSTD), last)]

    assert asyncio.run(push_both()) == [ErrorCode.NONE, ErrorCode.NONE]
    metrics = client.receiver.metrics.get(NEW_ID)
    assert metrics is not None
    assert metrics.is_terminated
    assert metrics.resource == (("group_id", "g"),)


def test_pushes_wait_for_their_turn_and_not_without_end(client: Client) -> None:
    """One is decoded at a time, some wait, the others come again later."""
    ids = [bytes(15) + bytes([each]) for each in range(2, WAITING_MAX + 12)]
    for instance_id in ids:
        client.subscribe(instance_id)

    async def push_all() -> list[ErrorCode]:
        return await asyncio.gather(*(client.push(instance_id=each) for each in ids))

    answers = asyncio.run(push_all())
    assert answers.count(ErrorCode.NONE) == WAITING_MAX
    assert answers.count(ErrorCode.THROTTLING_QUOTA_EXCEEDED) == len(ids) - WAITING_MAX
    assert asyncio.run(client.push(instance_id=NEW_ID)) is ErrorCode.NONE
