"""Consumers without a fetch session that catch up: their fetches are not decoded.

librdkafka names in each request all partitions that it has room for, other clients one after the
other. After a few responses that were large, what a request says of the whole and of each partition
is kept as a `SessionlessFetch`. A later request is compared with it piece by piece: it may name any
of the partitions that are known by then, in any order and at any offset. Others are decoded once,
and known from then on.

Invariant as for all repeated requests: a fetch is answered here only while everything that it was
told when it was decoded still holds. Anything else goes the way of all requests: errors, the end of
the logs, aborted transactions, many small batches. From version 5 on. Called by
repeated_requests.py (docs/adr/0028-records-to-consumers.md).

    partition in a request    partition i32, leader epoch i32 (9), fetch offset i64,
                              last fetched epoch i32 (12), log start offset i64, bytes i32
    partition in a response   partition i32, error i16, high watermark, last stable offset and log
                              start offset i64, aborted transactions, preferred replica i32 (11),
                              records

In brackets: the first version that has it. From version 12 on lengths are varints of one byte here,
and each ends with a byte for tagged fields, of which there are none; from 13 on topics have ids.
"""

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from time import perf_counter_ns
from typing import Final, TypeAlias

from odradek.node.router.context import RequestContext, Services
from odradek.node.router.fetch_routes import FEW_BYTES_MAX
from odradek.node.router.fetch_sessions import FINAL_EPOCH, CachedPartition, TopicKey
from odradek.node.router.handlers.fetch import (
    BATCHES_PER_TURN,
    PARTITIONS_PER_TURN,
    READ_COMMITTED,
)
from odradek.node.router.large_fetches import REPEATED_AFTER
from odradek.node.router.logs import LocatedLog
from odradek.node.router.request_sampling import SAMPLE_MASK_OF_API
from odradek.node.router.single_fetches import SingleFetches, Told
from odradek.node.wire.connection import Connection, Slot
from odradek.node.wire.framing import Buffer
from odradek.node.wire.request_times import RequestTiming
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest
from odradek.protocol.primitives import uvarint
from odradek.storage.environment import StorageError
from odradek.storage.reader import StoreReader
from odradek.storage.status import OFFSETS

PARTITIONS_MAX: Final = 1_000
"""Known of one connection."""

_SAMPLE_MASK: Final = SAMPLE_MASK_OF_API[ApiKey.FETCH]
_FIRST_VERSION: Final = 5
_SESSIONS_SINCE: Final = 7
_LEADER_EPOCH_SINCE: Final = 9
_PREFERRED_REPLICA_SINCE: Final = 11
_FLEXIBLE_SINCE: Final = 12
_TOPIC_IDS_SINCE: Final = 13
_REPLICA_STATE_SINCE: Final = 15
_BEHIND_CORRELATION_ID: Final = 8
_KEY_AND_VERSION_BYTES: Final = 4
_TOPIC_ID_BYTES: Final = 16
_LENGTH_MAX: Final = 127
"""Topics of a request, or partitions of a topic, plus one: a varint of one byte."""
_read_int16 = Struct(">h").unpack_from
_read_int32 = Struct(">i").unpack_from
_pack_int16 = Struct(">h").pack
_pack_int32 = Struct(">i").pack
_pack_head = Struct(">ihqqq").pack

_Entry: TypeAlias = tuple[int, ...]
_Topics: TypeAlias = list[tuple[bytes, list[_Entry]]]
"""What a request says of partitions, by the bytes that name their topic."""


class _Layout:
    """What the requests and responses of a version have in which places."""

    __slots__ = (
        "entry",
        "fields_bytes",
        "has_ids",
        "is_flexible",
        "no_records",
        "no_tags",
        "nothing_aborted",
        "offset_at",
        "preferred_replica",
        "response_head",
    )

    def __init__(self, version: int) -> None:
        is_flexible = version >= _FLEXIBLE_SINCE
        has_leader_epoch = version >= _LEADER_EPOCH_SINCE
        self.is_flexible: Final = is_flexible
        self.has_ids: Final = version >= _TOPIC_IDS_SINCE
        self.entry: Final = Struct(
            ">i" + "i" * has_leader_epoch + ("qiqiB" if is_flexible else "qqi")
        )
        self.offset_at: Final = 1 + has_leader_epoch
        """The place of the fetch offset in an entry."""
        # The replica, which has another place in later versions; wait, bytes, isolation, session.
        self.fields_bytes: Final = (
            4 * (version < _REPLICA_STATE_SINCE) + 13 + 8 * (version >= _SESSIONS_SINCE)
        )
        """Before the topics of a request."""
        # No tags, no throttle, no error and no session.
        self.response_head: Final = bytes(is_flexible + 4 + 6 * (version >= _SESSIONS_SINCE))
        self.nothing_aborted: Final = (
            (b"\x00", b"\x01") if is_flexible else (_pack_int32(-1), _pack_int32(0))
        )
        """By isolation level: null, or none."""
        has_replica = version >= _PREFERRED_REPLICA_SINCE
        self.preferred_replica: Final = _pack_int32(-1) if has_replica else b""
        self.no_records: Final = uvarint(1) if is_flexible else _pack_int32(0)
        self.no_tags: Final = bytes(is_flexible)

    def length(self, count: int) -> bytes:
        """Of an array, or of records."""
        return uvarint(count + 1) if self.is_flexible else _pack_int32(count)

    def topics(self, frame: memoryview, at: int) -> tuple[_Topics, int] | None:
        """The topics that begin there, and where they end. None if they are not as most requests
        have them: each topic and each partition once. Whether a partition has tagged fields is for
        the caller to see."""
        try:
            return self._topics(frame, at)
        except (IndexError, StructError):
            return None  # it ends too early

    def _topics(self, frame: memoryview, at: int) -> tuple[_Topics, int] | None:
        topics: _Topics = []
        is_flexible, entry_bytes, size = self.is_flexible, self.entry.size, len(frame)
        if is_flexible:
            count = frame[at] - 1
            at += 1
        else:
            (count,) = _read_int32(frame, at)
            at += 4
        if not 0 < count < _LENGTH_MAX:
            return None
        for _ in range(count):
            named_at = at
            if self.has_ids:
                at += _TOPIC_ID_BYTES
            elif is_flexible:
                at += frame[at]
            else:
                at += 2 + _read_int16(frame, at)[0]
            if not named_at < at < size:
                return None
            name = bytes(frame[named_at:at])
            if is_flexible:
                partition_count = frame[at] - 1
                at += 1
            else:
                (partition_count,) = _read_int32(frame, at)
                at += 4
            end = at + partition_count * entry_bytes
            if not 0 < partition_count < _LENGTH_MAX or end > size or (is_flexible and frame[end]):
                return None
            entries = list(self.entry.iter_unpack(frame[at:end]))
            if partition_count > 1 and len({each[0] for each in entries}) < partition_count:
                return None
            topics.append((name, entries))
            at = end + is_flexible
        if count > 1 and len({name for name, _ in topics}) < count:
            return None
        return topics, at

    def topics_of(self, request: FetchRequest) -> _Topics:
        """The same of a request that is decoded."""
        found: _Topics = []
        for topic in request.topics:
            name = topic.topic.encode()
            if self.has_ids:
                name = topic.topic_id
            elif self.is_flexible:
                name = uvarint(len(name) + 1) + name
            else:
                name = _pack_int16(len(name)) + name
            entries: list[_Entry] = []
            for each in topic.partitions:
                epochs = (each.current_leader_epoch,) * (self.offset_at - 1)
                said = each.log_start_offset, each.partition_max_bytes
                if self.is_flexible:
                    said = (each.last_fetched_epoch, *said, 0)  # type: ignore[assignment]
                entries.append((each.partition, *epochs, each.fetch_offset, *said))
            found.append((name, entries))
        return found


_LAYOUTS: Final = {
    version: _Layout(version)
    for version in range(_FIRST_VERSION, APIS[ApiKey.FETCH].max_version + 1)
}


class SessionlessFetches:
    """What is remembered of a connection before: how many fetches in a row had large responses."""

    __slots__ = ("until_repeated",)

    def __init__(self) -> None:
        self.until_repeated = REPEATED_AFTER


class _Partition:
    """What requests say of a partition besides the offset, and where it is."""

    __slots__ = ("asked", "bytes_max", "last_fetched_epoch", "leader_epoch", "log")

    def __init__(self, asked: _Entry, wanted: FetchPartition, log: LocatedLog) -> None:
        """`asked` is the entry without the offset."""
        self.asked: Final = asked
        self.bytes_max: Final = wanted.partition_max_bytes
        self.leader_epoch: Final = wanted.current_leader_epoch
        self.last_fetched_epoch: Final = wanted.last_fetched_epoch
        self.log: Final = log


class _Topic:
    """A topic, and its partitions that are known."""

    __slots__ = ("key", "partitions")

    def __init__(self, key: TopicKey) -> None:
        self.key: Final = key
        self.partitions: Final[dict[int, _Partition]] = {}


class SessionlessFetch(Told):
    """A fetch whose like are known by their bytes."""

    __slots__ = (
        "bytes_max",
        "client_host",
        "client_id",
        "count_key",
        "end",
        "is_read_committed",
        "layout",
        "min_bytes",
        "start",
        "stores",
        "topics",
    )

    def __init__(
        self,
        told: Told,
        request: FetchRequest,
        context: RequestContext,
        *,
        start: bytes,
        end: bytes,
        bytes_max: int,
    ) -> None:
        """`start` and `end` are what the request has before its topics and behind them, with
        zeroes for the correlation id."""
        super().__init__(told.image_offset, told.rules, told.principal)
        self.start: Final = start
        self.end: Final = end
        self.layout: Final = _LAYOUTS[context.api_version]
        self.count_key: Final = ApiKey.FETCH, context.api_version
        self.client_id: Final = context.client_id or ""
        self.client_host: Final = context.client_host
        self.is_read_committed: Final = request.isolation_level == READ_COMMITTED
        self.bytes_max: Final = bytes_max
        """Of the records in a response."""
        self.min_bytes: Final = min(request.min_bytes, bytes_max)
        self.topics: Final[dict[bytes, _Topic]] = {}
        """By the bytes that name them."""
        self.stores: Final[set[tuple[int, StoreReader, int]]] = set()
        """(store, reader, generation of its catalog): of the time when partitions were located."""

    def is_like(self, other: "SessionlessFetch") -> bool:
        """Whether they differ in partitions only."""
        return (
            self.start == other.start
            and self.end == other.end
            and self.image_offset == other.image_offset
            and self.rules is other.rules
            and self.principal == other.principal
        )

    def topics_in(self, frame: memoryview) -> _Topics | None:
        """What the request says of partitions, if it says the same as this one of the rest."""
        at = len(self.start)
        if frame[_BEHIND_CORRELATION_ID:at] != self.start[_BEHIND_CORRELATION_ID:]:
            return None
        found = self.layout.topics(frame, at)
        if found is None or frame[found[1] :] != self.end:
            return None
        return found[0]

    def add(self, name: bytes, key: TopicKey, partition: int, known: _Partition) -> None:
        """A partition that has just been located."""
        log = known.log
        self.stores.add((log.store, log.reader, log.reader.status.generation))
        self._add(name, key, partition, known)

    def add_all(self, other: "SessionlessFetch") -> None:
        """What the other knows. Without room for it, instead of what was known."""
        if sum(len(topic.partitions) for topic in self.topics.values()) >= PARTITIONS_MAX:
            self.topics.clear()
            self.stores.clear()
        # Of a store that has changed since one of them was made there are two generations then:
        # it is looked at again.
        self.stores.update(other.stores)
        for name, topic in other.topics.items():
            for partition, known in topic.partitions.items():
                self._add(name, topic.key, partition, known)

    def _add(self, name: bytes, key: TopicKey, partition: int, known: _Partition) -> None:
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = _Topic(key)
        topic.partitions[partition] = known


class SessionlessFetchRouting:
    """Those of all connections of a router. `count_requests` is called with API key and version of
    requests that are answered here, and their number."""

    def __init__(
        self,
        services: Services,
        fetches: SingleFetches,
        count_requests: Callable[[tuple[int, int], int], None],
    ) -> None:
        self._fetches = fetches
        self._logs = services.logs
        self._metadata = services.metadata
        self._activity = services.fetch_activity
        self._count_requests = count_requests

    def begin(
        self, client: Connection, request: FetchRequest, context: RequestContext, body_offset: int
    ) -> SessionlessFetch | None:
        """A request that `is_sessionless` is begun. What is kept of it if its response is large,
        None if those before it were not."""
        before = client.remembered
        is_due = type(before) is SessionlessFetches and before.until_repeated <= 0
        if not is_due and type(before) is not SessionlessFetch:
            return None
        return self._resolve(request, context, body_offset)

    def note(self, client: Connection, kept: SessionlessFetch | None, record_bytes: int) -> None:
        """The response to a request that was begun. It has so many bytes of records and nothing
        else, or 0."""
        before = client.remembered
        is_sessionless = type(before) is SessionlessFetches or type(before) is SessionlessFetch
        if record_bytes <= FEW_BYTES_MAX:
            if is_sessionless:
                client.remembered = None
            return
        if kept is None:
            if type(before) is SessionlessFetches:
                before.until_repeated -= 1
            elif before is None:
                client.remembered = SessionlessFetches()
        elif type(before) is SessionlessFetch and before.is_like(kept):
            before.add_all(kept)
        elif is_sessionless:
            client.remembered = kept

    def answer(self, kept: SessionlessFetch, slot: Slot, frame: memoryview) -> bool:
        """Answer the request if it is like the one that is kept. False if it has to be decoded:
        nothing has been done with it then. One with other partitions goes to `begin` next."""
        connection = slot.connection
        if frame[:_KEY_AND_VERSION_BYTES] != kept.start[:_KEY_AND_VERSION_BYTES]:
            return False
        topics = kept.topics_in(frame)
        if topics is None or not self._is_unchanged(kept, connection):
            connection.remembered = None
            return False
        at = kept.layout.offset_at
        for name, entries in topics:
            topic = kept.topics.get(name)
            if topic is None:
                return False
            known = topic.partitions
            for entry in entries:
                partition = known.get(entry[0])
                if partition is None or partition.asked != entry[:at] + entry[at + 1 :]:
                    return False
        if not self._send(kept, slot, topics, frame):
            connection.remembered = None
            return False
        return True

    def _send(self, kept: SessionlessFetch, slot: Slot, topics: _Topics, frame: memoryview) -> bool:
        connection = slot.connection
        (correlation_id,) = _read_int32(frame, _KEY_AND_VERSION_BYTES)
        layout, offset_at = kept.layout, kept.layout.offset_at
        bytes_max, is_read_committed = kept.bytes_max, kept.is_read_committed
        between = layout.nothing_aborted[is_read_committed] + layout.preferred_replica
        no_tags = layout.no_tags
        pieces = [_pack_int32(correlation_id), layout.response_head, layout.length(len(topics))]
        buffers: list[Buffer] = []
        holds: list[object] = []
        cached: list[CachedPartition] = []
        sent: list[tuple[TopicKey, int, int]] = []
        record_bytes = batch_count = 0
        for name, entries in topics:
            topic = kept.topics[name]
            pieces += name, layout.length(len(entries))
            for entry in entries:
                index, offset = entry[0], entry[offset_at]
                known = topic.partitions[index]
                reader, _, number = known.log
                start, stable, high = OFFSETS.unpack(reader.status.consumer_offsets(number))
                if not start <= offset <= high:
                    return False
                cached.append(
                    CachedPartition(
                        topic.key,
                        index,
                        offset,
                        known.bytes_max,
                        known.leader_epoch,
                        known.last_fetched_epoch,
                    )
                )
                limit = stable if is_read_committed and stable < high else high
                pieces += _pack_head(index, 0, high, stable, start), between
                left = bytes_max - record_bytes
                if offset >= limit or left <= 0:
                    pieces += layout.no_records, no_tags
                    continue
                try:
                    read = reader.read(
                        number,
                        offset,
                        max_bytes=min(left, known.bytes_max),
                        end_offset=limit,
                        min_one_batch=not record_bytes,
                        batches_max=BATCHES_PER_TURN - batch_count,
                    )
                    if (
                        is_read_committed
                        and read.buffers
                        and reader.aborted_transactions(
                            number, offset, read.next_offset, count_max=1
                        )
                    ):
                        return False
                except StorageError:
                    return False  # it is said by whoever decodes it
                size = read.byte_count
                pieces.append(layout.length(size))
                if size:
                    batch_count += read.batch_count
                    if batch_count >= BATCHES_PER_TURN:
                        return False  # so many are read in several turns
                    record_bytes += size
                    buffers.append(b"".join(pieces))
                    buffers += read.buffers
                    pieces = []
                    holds.append(read.hold)
                    sent.append((topic.key, size, read.next_offset - offset))
                pieces.append(no_tags)
            pieces.append(no_tags)
        if record_bytes < kept.min_bytes:
            return False
        pieces.append(no_tags)
        buffers.append(b"".join(pieces))
        if not correlation_id & _SAMPLE_MASK:
            slot.timing = RequestTiming(ApiKey.FETCH, connection.received_ns, perf_counter_ns())
        self._activity.record_fetch(
            connection.id,
            kept.client_id,
            kept.client_host,
            cached,
            session_id=0,
            is_reduced=True,
            is_read_committed=is_read_committed,
            now_ms=self._fetches.now_ms(),
        )
        self._activity.record_sent(sent)
        self._count_requests(kept.count_key, 1)
        if record_bytes <= FEW_BYTES_MAX:
            # It has caught up. From now on it is waiting most of the time.
            connection.remembered = None
        slot.complete(buffers, holds)
        return True

    def _is_unchanged(self, kept: SessionlessFetch, connection: Connection) -> bool:
        """Whether everything is as it was told."""
        if not self._fetches.holds(kept, connection):
            return False
        for store, reader, generation in kept.stores:
            if reader.status.generation != generation or not self._logs.has_open(store, reader):
                return False
        return True

    def _resolve(
        self, request: FetchRequest, context: RequestContext, body_offset: int
    ) -> SessionlessFetch | None:
        """What requests like this one are told as long as nothing changes. None if that depends on
        more."""
        version, image = context.api_version, self._metadata.image
        frame, layout = context.frame, _LAYOUTS[version]
        topics_at = body_offset + layout.fields_bytes
        start = bytearray(frame[:topics_at])
        start[_KEY_AND_VERSION_BYTES:_BEHIND_CORRELATION_ID] = bytes(4)
        found = layout.topics(frame, topics_at)
        if (
            found is None
            or found[0] != layout.topics_of(request)
            or self._fetches.may_prefer_another_replica(request)
        ):
            return None
        topics, end_at = found
        kept = SessionlessFetch(
            self._fetches.told(context),
            request,
            context,
            start=bytes(start),
            end=bytes(frame[end_at:]),
            bytes_max=min(request.max_bytes, self._metadata.broker_settings().fetch_max_bytes),
        )
        at = layout.offset_at
        for asked, (name, entries) in zip(request.topics, topics, strict=True):
            key: TopicKey = asked.topic_id if layout.has_ids else asked.topic
            topic = (
                image.topics_by_id.get(asked.topic_id)
                if layout.has_ids
                else image.topics_by_name.get(asked.topic)
            )
            for wanted, entry in zip(asked.partitions, entries, strict=True):
                log = self._fetches.locate(topic, wanted)
                if log is None:
                    return None
                said = entry[:at] + entry[at + 1 :]
                kept.add(name, key, wanted.partition, _Partition(said, wanted, log))
        return kept


def is_sessionless(request: FetchRequest, version: int) -> bool:
    """Whether the request is a consumer's, without a session, and is answered in one slice of the
    loop."""
    if (
        version < _FIRST_VERSION
        or request.session_id
        or request.session_epoch != FINAL_EPOCH
        or request.replica_id >= 0
        or request.forgotten_topics_data
        or request.max_bytes <= 0
    ):
        return False
    state = request.replica_state
    if state is not None and state.replica_id >= 0:
        return False
    partitions = [each for topic in request.topics for each in topic.partitions]
    return 0 < len(partitions) <= PARTITIONS_PER_TURN and all(
        each.partition_max_bytes > 0 for each in partitions
    )
