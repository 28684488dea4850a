"""The receiver of client telemetry (KIP-714): GetTelemetrySubscriptions and PushTelemetry of the
clients of one router.

Requests of one client instance may come over any connection to any broker; brokers share nothing.
What takes long does not hold the loop: metrics are decompressed in a thread and decoded in slices,
one push after the other, so that those of a client stay in order. Decompressed metrics are at most
DECOMPRESSED_RATIO_MAX times telemetry.max.bytes.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from typing import Final

from odradek.node.metrics.registry import Sample
from odradek.node.router.connected_clients import ConnectedClient
from odradek.node.router.cooperative_iteration import run_in_slices, run_in_thread
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.telemetry.client_metrics import (
    ClientMetricsStore,
    PushedMetrics,
    PushingClient,
    TooManyPointsError,
)
from odradek.node.router.telemetry.instances import ClientInstance, ClientInstances
from odradek.node.router.telemetry.subscriptions import (
    ClientAttributes,
    ClientMetricsSubscriptions,
)
from odradek.protocol.compression import Codec, DecompressedSizeError
from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError
from odradek.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
)
from odradek.protocol.piecewise_compression import decompress_pieces
from odradek.protocol.types import ZERO_UUID, Uuid, uuid_to_text

ACCEPTED_COMPRESSION_TYPES: Final = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
"""In Kafka's order of preference. Metrics without compression are accepted, too."""
WAITING_MAX: Final = 64
"""Pushes that wait to be decoded, or are. One more is told to come again at the next interval."""
DECOMPRESSED_RATIO_MAX: Final = 8
RESERVED_IDS: Final = (ZERO_UUID, bytes(15) + b"\x01")
"""Kafka's reserved UUIDs, which no client has."""


class TelemetryReceiver:
    """See the module's docstring. `now_ms` is monotonic."""

    def __init__(
        self, metadata: MetadataCache, now_ms: Callable[[], int], new_id: Callable[[], Uuid]
    ) -> None:
        self._metadata = metadata
        self._now_ms = now_ms
        self._new_id = new_id
        self._subscriptions = ClientMetricsSubscriptions()
        self.instances = ClientInstances(self._subscriptions)
        self.metrics = ClientMetricsStore()
        self.push_counts: Counter[str] = Counter()
        """Pushes by the name of the error code that they were answered with."""
        self._decoding = asyncio.Lock()
        self._waiting_count = 0

    @property
    def now_ms(self) -> int:
        """The receiver's clock."""
        return self._now_ms()

    def subscribe(
        self,
        request: GetTelemetrySubscriptionsRequest,
        client: ConnectedClient,
        connection_id: int,
    ) -> GetTelemetrySubscriptionsResponse:
        """What the client shall push. ApiError if it asks too often."""
        instance_id = request.client_instance_id
        # As Kafka's: a text that begins with a dash is taken for an option of a command.
        while instance_id == ZERO_UUID or (
            instance_id != request.client_instance_id and uuid_to_text(instance_id)[0] == "-"
        ):
            instance_id = self._new_id()
        instance = self._use(instance_id, client, connection_id)
        instance.begin_get(self._now_ms())
        subscription = instance.subscription
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance_id,
            subscription_id=subscription.subscription_id,
            accepted_compression_types=list(ACCEPTED_COMPRESSION_TYPES),
            push_interval_ms=subscription.interval_ms,
            telemetry_max_bytes=self._bytes_max,
            delta_temporality=True,
            requested_metrics=list(subscription.metrics),
        )

    async def push(
        self, request: PushTelemetryRequest, client: ConnectedClient, connection_id: int
    ) -> None:
        """Keep what the client pushes. ApiError if it is refused."""
        try:
            await self._push(request, client, connection_id)
        except ApiError as error:
            self.push_counts[error.code.name] += 1
            raise
        self.push_counts[ErrorCode.NONE.name] += 1

    def remove_connection(self, connection_id: int) -> None:
        """A client's connection is closed."""
        self.instances.remove_connection(connection_id)

    def samples(self) -> list[Sample]:
        """The metrics of all clients."""
        return self.metrics.samples(self._now_ms())

    @property
    def _bytes_max(self) -> int:
        return self._metadata.broker_settings().telemetry_max_bytes

    def _use(
        self, instance_id: Uuid, client: ConnectedClient, connection_id: int
    ) -> ClientInstance:
        self._subscriptions.follow(self._metadata.image.configs.client_metrics)
        attributes = ClientAttributes(
            client_instance_id=uuid_to_text(instance_id),
            client_id=client.client_id,
            client_software_name=client.software_name,
            client_software_version=client.software_version,
            client_source_address=client.host,
            client_source_port=str(client.port),
        )
        return self.instances.use(instance_id, attributes, connection_id, self._now_ms())

    async def _push(
        self, request: PushTelemetryRequest, client: ConnectedClient, connection_id: int
    ) -> None:
        instance_id = request.client_instance_id
        if instance_id in RESERVED_IDS:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        instance = self._use(instance_id, client, connection_id)
        instance.begin_push(
            request.subscription_id, is_terminating=request.terminating, now_ms=self._now_ms()
        )
        try:
            codec = Codec(request.compression_type)
        except ValueError:
            raise instance.failed(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE) from None
        if len(request.metrics) > self._bytes_max:
            raise instance.failed(ErrorCode.TELEMETRY_TOO_LARGE)
        if not request.metrics:
            return
        if self._waiting_count >= WAITING_MAX:
            raise instance.failed(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self._waiting_count += 1
        try:
            async with self._decoding:
                pushed = await self._decoded(request.metrics, codec, instance)
        finally:
            self._waiting_count -= 1
        self.metrics.record(
            PushingClient(
                instance_id,
                client.client_id,
                client.software_name,
                client.software_version,
                client.host,
            ),
            pushed,
            now_ms=self._now_ms(),
            kept_ms=instance.expiry_ms,
            is_terminating=request.terminating,
        )

    async def _decoded(
        self, metrics: bytes, codec: Codec, instance: ClientInstance
    ) -> PushedMetrics:
        limit = DECOMPRESSED_RATIO_MAX * self._bytes_max
        try:
            work = await run_in_thread(_begin_decoding, codec, metrics, limit)
            return await run_in_slices(work)
        except (DecompressedSizeError, TooManyPointsError) as error:
            raise instance.failed(ErrorCode.TELEMETRY_TOO_LARGE) from error
        except ProtocolError as error:
            raise instance.failed(ErrorCode.INVALID_RECORD) from error


def _begin_decoding(
    codec: Codec, metrics: bytes, limit: int
) -> Generator[None, None, PushedMetrics]:
    """In a thread: decompresses without the GIL, and imports what decodes at the first push."""
    from odradek.node.router.telemetry.otlp import decode_metrics

    return decode_metrics(b"".join(decompress_pieces(codec, metrics, limit=limit)))
