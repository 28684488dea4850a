"""Fetch requests of consumers whose connections a router has handed over: a worker answers them.

Such a consumer reads one partition and follows its end: its requests are the same bytes, but for
the correlation id, the fetch offset and the epoch of its session (bus/connection_handover.py). They
are compared and not decoded, and the response is put around what the store has. A fetch that finds
nothing waits here for the turn that appends something, or for its time. While records come all the
time, a request is not even read before: see UNWATCHED_S. What the router has to answer is left to
it: offsets outside the log, partitions that are not led here any more, aborted transactions, more
records than RECORD_BYTES_MAX. Called by handed_connections.py
(docs/adr/0027-connection-handover.md).
"""

from collections.abc import Callable, Hashable
from struct import Struct
from typing import Final, Generic, TypeVar

from odradek.node.bus.connection_handover import DirectFetch, FetchPosition
from odradek.node.worker.hosted_partitions import PartitionLocation
from odradek.protocol.primitives import uvarint
from odradek.protocol.types import NEVER
from odradek.storage.environment import StorageError
from odradek.storage.reader import StoreReader
from odradek.storage.status import OFFSETS, ReplicaRole

RECORD_BYTES_MAX: Final = 64 << 10
"""Of a response. Larger ones keep both processes busy."""

UNWATCHED_S: Final = 0.01
"""So long after a response nobody is woken by what the consumer sends: the next record wakes the
worker anyway, and then the request is there. Each request would cost another sleep."""
LEFT_TO_ROUTER: Final = b""
NEVER_S: Final = float("inf")
_EPOCH_MAX: Final = 2**31 - 1
_START_BYTES: Final = 8
"""Length of the frame, API key and version; the correlation id follows."""
_BEHIND_AT: Final = 12
_LENGTH_BYTES: Final = 4
_pack_start = Struct(">ii").pack
_pack_offsets = Struct(">qqq").pack
_int32 = Struct(">i")
_int64 = Struct(">q")


class HandedFetch:
    """The fetches of one connection, one at a time."""

    __slots__ = (
        "_before",
        "_behind",
        "_offset_at",
        "_repeated",
        "_repeated_start",
        "_request_start",
        "bytes_max",
        "correlation_id",
        "due_s",
        "epoch",
        "fetch_offset",
        "has_session",
        "location",
        "record_bytes",
        "records",
        "route",
        "sent_high_watermark",
        "sent_log_start_offset",
        "watch_s",
    )

    def __init__(self, route: DirectFetch, key_and_version: int) -> None:
        self.route = route
        self.location: PartitionLocation = (route.store, route.number)
        self.bytes_max = min(route.bytes_max, RECORD_BYTES_MAX)
        self._request_start = _start(route.request, key_and_version)
        repeated = route.repeated_request
        self._repeated_start = _start(repeated, key_and_version) if repeated else None
        self._offset_at = route.offset_at + _BEHIND_AT
        self.has_session = route.epoch_at >= 0
        position = route.position
        self.epoch, self.fetch_offset = position.epoch, position.fetch_offset
        self.sent_high_watermark = position.sent_high_watermark
        self.sent_log_start_offset = position.sent_log_start_offset
        self.correlation_id: bytes | None = None
        """Of the request that is not answered."""
        self.due_s = 0.0
        """When it is answered even if there is nothing."""
        self.watch_s = NEVER_S
        """When to look for requests again, if they are not looked for."""
        self.records = self.record_bytes = 0
        """That were sent; counted by offsets."""
        self._expect_epoch()

    @property
    def position(self) -> FetchPosition:
        """Before the request that is not answered, if there is one."""
        return FetchPosition(
            self.epoch, self.fetch_offset, self.sent_high_watermark, self.sent_log_start_offset
        )

    @property
    def next_s(self) -> float:
        """When there is something to do even if nothing comes."""
        return self.watch_s if self.correlation_id is None else min(self.watch_s, self.due_s)

    def accept(self, data: bytes, now_s: float) -> bool:
        """Whether this is one request as expected. It is to be answered then."""
        start = data[:_START_BYTES]
        if start == self._request_start:
            at = self._offset_at
            if data[_BEHIND_AT:at] != self._before or data[at + 8 :] != self._behind:
                return False
            (self.fetch_offset,) = _int64.unpack_from(data, at)
        elif start != self._repeated_start or data[_BEHIND_AT:] != self._repeated:
            return False
        self.correlation_id = data[_START_BYTES:_BEHIND_AT]
        self.due_s = now_s + self.route.wait_ms / 1000
        return True

    def take_fetched(self) -> tuple[int, int, int]:
        """Records and bytes that were sent since the last call, and the last fetch offset."""
        fetched = self.records, self.record_bytes, self.fetch_offset
        self.records = self.record_bytes = 0
        return fetched

    def release(self, now_s: float) -> bytes:
        """The request that is not answered, with the rest of its time, for the router; empty if
        there is none."""
        if self.correlation_id is None:
            return b""
        request = bytearray(self._before + _int64.pack(self.fetch_offset) + self._behind)
        left_ms = min(max(0, int((self.due_s - now_s) * 1000)), self.route.wait_ms)
        _int32.pack_into(request, self.route.wait_at, left_ms)
        released = self._request_start + self.correlation_id + request
        self.correlation_id = None
        return released

    def response(
        self,
        offsets: tuple[int, int, int],
        records: list[memoryview | bytes],
        record_bytes: int,
    ) -> bytes:
        """To the request, with its length. `offsets` are log start, last stable offset and high
        watermark."""
        correlation_id, route = self.correlation_id, self.route
        assert correlation_id is not None
        self.correlation_id = None
        start, stable, high = offsets
        if self.has_session:
            is_unchanged = (start, high) == (self.sent_log_start_offset, self.sent_high_watermark)
            self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1
            self.sent_log_start_offset, self.sent_high_watermark = start, high
            self._expect_epoch()
            if is_unchanged and not records:
                body = route.unchanged_response
                return _int32.pack(len(correlation_id) + len(body)) + correlation_id + body
        length = uvarint(record_bytes + 1) if route.is_flexible else _int32.pack(record_bytes)
        head, middle = route.head, route.middle
        told = _pack_offsets(high, stable, start)
        body = b"".join((correlation_id, head, told, middle, length, *records, route.tail))
        return _int32.pack(len(body)) + body

    def _expect_epoch(self) -> None:
        """The next request has the session's next epoch."""
        route, at = self.route, self.route.epoch_at
        request, self._repeated = route.request, route.repeated_request
        if at >= 0:
            epoch = _int32.pack(self.epoch)
            request = request[:at] + epoch + request[at + 4 :]
            self._repeated = self._repeated[:at] + epoch + self._repeated[at + 4 :]
        self._before, self._behind = request[: route.offset_at], request[route.offset_at + 8 :]


def _start(request: bytes, key_and_version: int) -> bytes:
    return _pack_start(_BEHIND_AT - _LENGTH_BYTES + len(request), key_and_version)


C = TypeVar("C", bound=Hashable)


class HandedFetches(Generic[C]):
    """What the fetches of all connections (C) of a worker need.

    `awaited` and `advanced` are those of the turns: partitions that somebody follows, and those
    among them that may have records now.
    """

    def __init__(
        self,
        open_reader: Callable[[int], StoreReader],
        awaited: set[PartitionLocation],
        advanced: list[PartitionLocation],
    ) -> None:
        self._open_reader = open_reader
        self._readers: dict[int, StoreReader] = {}
        self._awaited = awaited
        self.advanced: Final = advanced
        self._followers: dict[PartitionLocation, dict[C, HandedFetch]] = {}

    def answer(self, fetch: HandedFetch, *, is_due: bool = False) -> bytes | None:
        """The response to the fetch's request. None: it waits, but not if it `is_due`. Empty: it is
        for the router."""
        store, number = fetch.location
        is_committed, offset = fetch.route.is_read_committed, fetch.fetch_offset
        try:
            reader = self._readers.get(store)
            if reader is None:
                reader = self._readers[store] = self._open_reader(store)
            status = reader.status
            offsets = OFFSETS.unpack(status.consumer_offsets(number))
            start, stable, high = offsets
            limit = stable if is_committed and stable < high else high
            if status.role(number) is not ReplicaRole.LEADER or not start <= offset <= limit:
                return LEFT_TO_ROUTER
            if offset == limit:
                return fetch.response(offsets, [], 0) if is_due else None
            read = reader.read(number, offset, max_bytes=fetch.bytes_max, end_offset=limit)
            if read.next_offset < limit or read.byte_count > fetch.bytes_max:
                return LEFT_TO_ROUTER
            if is_committed and reader.aborted_transactions(
                number, offset, read.next_offset, count_max=1
            ):
                return LEFT_TO_ROUTER
        except StorageError:
            return LEFT_TO_ROUTER
        fetch.records += read.next_offset - offset
        fetch.record_bytes += read.byte_count
        return fetch.response(offsets, read.buffers, read.byte_count)

    def follow(self, connection: C, fetch: HandedFetch) -> None:
        """The connection is handed over."""
        self._followers.setdefault(fetch.location, {})[connection] = fetch
        self._awaited.add(fetch.location)

    def end(self, connection: C, fetch: HandedFetch) -> None:
        """The connection goes."""
        followers = self._followers.get(fetch.location)
        if followers is not None and followers.pop(connection, None) is not None and not followers:
            del self._followers[fetch.location]
            self._awaited.discard(fetch.location)

    def woken(self) -> list[tuple[C, HandedFetch]]:
        """Those whose partitions have advanced since the last call."""
        locations = dict.fromkeys(self.advanced)
        self.advanced.clear()
        return [each for at in locations for each in self._followers.get(at, {}).items()]

    def all(self) -> list[tuple[C, HandedFetch]]:
        """All that are handed over."""
        return [each for followers in self._followers.values() for each in followers.items()]

    def next_ms(self) -> int:
        """When one of them is due or has to be watched, by the monotonic clock."""
        times = [fetch.next_s for _, fetch in self.all()]
        first_s = min(times, default=NEVER_S)
        return NEVER if first_s == NEVER_S else int(first_s * 1000) + 1

    def release_segments(self) -> None:
        """Release segments that were dropped. To be called every now and then."""
        for store, reader in list(self._readers.items()):
            try:
                reader.refresh()
            except StorageError:
                # Its log directory has failed. Whoever reads it next finds out.
                self._readers.pop(store).close()

    def close(self) -> None:
        """Close the readers."""
        for reader in self._readers.values():
            reader.close()
