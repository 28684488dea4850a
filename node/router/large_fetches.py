"""Consumers with a fetch session that catch up on its one partition: their fetches are not decoded.

A consumer that reads a log from far behind its end asks for a megabyte at a time, and its requests
are the same bytes but for the correlation id, the fetch offset and the epoch of its session. (Those
without a session are in sessionless_fetches.py.) After a few responses that were large the request
is kept as a `LargeFetch`; a repetition of it is compared with it, and its response is the records
between bytes that are known (single_fetches.py). Decoding, resolving and encoding was 30 % of the
processor time of a fetch of a megabyte, the kernel's copy included.

Invariant as for all repeated requests: a fetch is answered here only while everything that it was
told when it was decoded still holds. Anything else goes the way of all requests: errors, the end of
the log, aborted transactions. Called by repeated_requests.py
(docs/adr/0028-records-to-consumers.md).
"""

from collections.abc import Callable
from struct import Struct
from time import perf_counter_ns
from typing import Final

from odradek.node.bus.connection_handover import FetchPosition
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.fetch_routes import FEW_BYTES_MAX
from odradek.node.router.request_sampling import SAMPLE_MASK_OF_API
from odradek.node.router.single_fetches import SingleFetch, SingleFetches
from odradek.node.wire.connection import Connection, Slot
from odradek.node.wire.request_times import RequestTiming
from odradek.protocol.apis import ApiKey
from odradek.protocol.messages.fetch import FetchRequest
from odradek.protocol.primitives import uvarint
from odradek.storage.environment import StorageError
from odradek.storage.status import OFFSETS

REPEATED_AFTER: Final = 4
"""Fetches in a row with large responses, before the next one is kept."""

_SAMPLE_MASK: Final = SAMPLE_MASK_OF_API[ApiKey.FETCH]
_NOWHERE: Final = FetchPosition(0, 0, -1, -1)
_KEY_AND_VERSION_BYTES: Final = 4
_BEHIND_CORRELATION_ID: Final = 8
_ZEROES: Final = bytes(8)
_read_int32 = Struct(">i").unpack_from
_read_int64 = Struct(">q").unpack_from
_pack_int32 = Struct(">i").pack
_pack_offsets = Struct(">qqq").pack


class LargeFetches:
    """What is remembered of a connection: how many fetches in a row had large responses, and of
    which partition."""

    __slots__ = ("partition", "until_repeated")

    def __init__(self) -> None:
        self.partition: tuple[str, bytes, int] | None = None
        self.until_repeated = REPEATED_AFTER


class LargeFetch:
    """A fetch whose repetitions are known by their bytes."""

    __slots__ = (
        "epoch_at",
        "fetch",
        "head",
        "is_flexible",
        "middle",
        "offset_at",
        "request",
        "tail",
    )

    def __init__(self, fetch: SingleFetch) -> None:
        self.fetch: Final = fetch
        template = fetch.template(_NOWHERE)
        api_key, version = fetch.count_key
        self.offset_at: Final = _BEHIND_CORRELATION_ID + template.offset_at
        self.epoch_at: Final = _BEHIND_CORRELATION_ID + template.epoch_at
        start = _pack_int32((api_key << 16) + version) + bytes(4)
        self.request: Final = self.without_changes(start + template.request)
        self.head: Final = template.head
        self.middle: Final = template.middle
        self.tail: Final = template.tail
        self.is_flexible: Final = template.is_flexible

    def without_changes(self, frame: bytes | memoryview) -> bytearray:
        """The frame with zeroes for what changes. It must be as long as the request."""
        found = bytearray(frame)
        found[4:8] = _ZEROES[:4]
        found[self.offset_at : self.offset_at + 8] = _ZEROES
        found[self.epoch_at : self.epoch_at + 4] = _ZEROES[:4]
        return found


class LargeFetchRouting:
    """Those of all connections of a router. `count_requests` is called with API key and version of
    requests that are answered here, and their number."""

    def __init__(
        self,
        services: Services,
        fetches: SingleFetches,
        count_requests: Callable[[tuple[int, int], int], None],
    ) -> None:
        self._fetches = fetches
        self._sessions = services.fetch_sessions
        self._count_requests = count_requests

    def remember(
        self, client: Connection, request: FetchRequest, context: RequestContext, body_offset: int
    ) -> None:
        """A request with a session that is single, and begun. If those before it were for the same
        partition and had large responses, it is kept."""
        large = client.remembered
        if type(large) is not LargeFetches:
            return
        (topic,) = request.topics
        partition = topic.topic, topic.topic_id, topic.partitions[0].partition
        if partition != large.partition:
            large.partition, large.until_repeated = partition, REPEATED_AFTER
        elif large.until_repeated <= 0:
            large.until_repeated = REPEATED_AFTER
            fetch = self._fetches.resolve(request, context, body_offset)
            if fetch is not None:
                client.remembered = LargeFetch(fetch)

    def note(self, client: Connection, record_bytes: int) -> None:
        """Count the response to a request that was begun. It has so many bytes of records of its
        partition and nothing else, or 0."""
        large = client.remembered
        if record_bytes <= FEW_BYTES_MAX:
            if type(large) is LargeFetches or type(large) is LargeFetch:
                client.remembered = None
            return
        if large is None:
            large = client.remembered = LargeFetches()
        if type(large) is LargeFetches:
            large.until_repeated -= 1

    def begin(self, large: LargeFetch, slot: Slot, frame: memoryview) -> bool:
        """Answer the request if it repeats the one that is kept. False if it has to be decoded:
        nothing has been done with it then. After another fetch it is not kept any more."""
        if len(frame) == len(large.request) and self._answer(large, slot, frame):
            return True
        if frame[:_KEY_AND_VERSION_BYTES] == large.request[:_KEY_AND_VERSION_BYTES]:
            slot.connection.remembered = None
        return False

    def _answer(self, large: LargeFetch, slot: Slot, frame: memoryview) -> bool:
        connection, fetch, fetches = slot.connection, large.fetch, self._fetches
        if large.without_changes(frame) != large.request or not fetches.is_unchanged(
            fetch, connection
        ):
            return False
        session = self._sessions.get(fetch.request.session_id)
        (epoch,) = _read_int32(frame, large.epoch_at)
        if session is None or session.epoch != epoch or fetch.cached_in(session) is None:
            return False
        (offset,) = _read_int64(frame, large.offset_at)
        reader, _, number = fetch.log
        start, stable, high = OFFSETS.unpack(reader.status.consumer_offsets(number))
        is_committed = fetch.is_read_committed
        limit = stable if is_committed and stable < high else high
        if not start <= offset < limit:
            return False
        try:
            read = reader.read(number, offset, max_bytes=fetch.bytes_max, end_offset=limit)
            if not read.buffers or (
                is_committed
                and reader.aborted_transactions(number, offset, read.next_offset, count_max=1)
            ):
                return False
        except StorageError:
            return False  # it is said by whoever decodes it
        (correlation_id,) = _read_int32(frame, _KEY_AND_VERSION_BYTES)
        if not correlation_id & _SAMPLE_MASK:
            slot.timing = RequestTiming(ApiKey.FETCH, connection.received_ns, perf_counter_ns())
        cached = fetch.cached_at(offset)
        cached.sent_high_watermark, cached.sent_log_start_offset = high, start
        fetch.replace_in(session, cached)
        self._sessions.advance(session, fetches.now_ms())
        size = read.byte_count
        fetches.record(fetch, connection, cached, (size, read.next_offset - offset))
        self._count_requests(fetch.count_key, 1)
        if size <= FEW_BYTES_MAX:
            # It has caught up. From now on it may be for the partition's worker.
            connection.remembered = None
        first = b"".join(
            (
                _pack_int32(correlation_id),
                large.head,
                _pack_offsets(high, stable, start),
                large.middle,
                uvarint(size + 1) if large.is_flexible else _pack_int32(size),
            )
        )
        slot.complete((first, *read.buffers, large.tail), read.hold)
        return True
