"""Real stores for tests: batches as clients send them, a store in a folder, and a model of it.

`ModelStore` is the model: lists of batches per partition, and the rules in their simplest form. Its
answers and those of a store must never differ.
"""

import re
import resource
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from odradek.protocol.compression import Codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import BatchHeader, Record, build_batch, read_header
from odradek.storage.append import AppendResult, Turn
from odradek.storage.log_append import LogAppend
from odradek.storage.partition_log import NewPartition
from odradek.storage.reader import StoreReader
from odradek.storage.settings import Durability, LogSettings, StoreOptions
from odradek.storage.store import Store
from odradek.storage.syncer import Syncer
from odradek.storage.validation import AppendOrigin
from tests.support.waiting import wait_until

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
OPTIONS = StoreOptions(segment_bytes=1 << 20, segment_map_bytes=64 << 20, status_slots=1 << 12)
_RESIDENT_OF_SEGMENT = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ .*/(?:segment-\d+\.mdb|compaction\.scratch)\n(?:.*\n)*?Rss: +(\d+) kB",
    re.MULTILINE,
)


@contextmanager
def largest_file(byte_count: int) -> Iterator[None]:
    """The kernel refuses to let a file grow beyond this: what a full disk does, without one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (byte_count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def batch_of(
    count: int = 1,
    *,
    size: int = 10,
    timestamp: int = NOW_MS,
    timestamps: Sequence[int] | None = None,
    key: bytes | None = b"k",
    codec: Codec = Codec.NONE,
    fill: int = 0x61,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """A batch as a client sends it: base offset 0, values of `size` bytes."""
    stamps = timestamps or [timestamp] * count
    records = [Record(i, stamps[i], key, bytes([fill]) * size) for i in range(count)]
    return build_batch(
        records,
        codec=codec,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def header_of(
    *,
    count: int = 1,
    timestamp: int = NOW_MS,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> BatchHeader:
    """The header of a batch of `count` records."""
    return BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )


def append(
    turn: Turn,
    number: int,
    batch: "bytes | Iterable[bytes]",
    *,
    leader_epoch: int = 0,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    request_version: int = 13,
    has_headroom: bool = False,
) -> AppendResult:
    """Append from an arena, with other bytes before and behind."""
    joined = batch if isinstance(batch, bytes) else b"".join(batch)
    arena = memoryview(bytearray(b"\xee" * 32 + joined + b"\xee" * 32))
    result = turn.append(
        number,
        LogAppend(
            arena,
            32,
            len(joined),
            leader_epoch=leader_epoch,
            origin=origin,
            request_version=request_version,
            has_headroom=has_headroom,
        ),
    )
    assert arena[:32] == b"\xee" * 32
    assert arena[32 + len(joined) :] == b"\xee" * 32
    return result


def append_now(
    store: Store,
    number: int,
    *batches: bytes,
    now_ms: int = NOW_MS,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> list[int]:
    """One turn, which must succeed. Returns the base offsets."""
    turn = store.begin(now_ms)
    results = [append(turn, number, batch, origin=origin) for batch in batches]
    turn.commit()
    assert [result.error_code for result in results] == [ErrorCode.NONE] * len(batches), results
    return [result.base_offset for result in results]


def open_store(directory: Path, options: StoreOptions = OPTIONS, now_ms: int = NOW_MS) -> Store:
    return Store.open(directory, options, now_ms)


def wait_for_sync(syncer: Syncer) -> None:
    """Wait until no sync is running. Raises its StorageError."""
    wait_until(lambda: not syncer.is_busy or not syncer._done.empty(), what="the sync")
    syncer.poll()


def tend(store: Store, now_ms: int) -> None:
    """Run everything that is due, as the owner does between turns, and wait for the sync thread."""
    for _ in range(2):
        store.run_due_tasks(now_ms)
        wait_for_sync(store._flusher._syncer)
    for _ in store.maintenance(now_ms) or ():
        pass


def open_files(directory: Path) -> list[str]:
    """Files below the folder that this process has open; those that are deleted say so."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(str(descriptor.readlink()))
    return [link for link in links if link.startswith(str(directory))]


def dropped_but_open(directory: Path) -> list[str]:
    """Deleted files that still use space because this process has them open."""
    return [link for link in open_files(directory) if "(deleted)" in link]


def mapped_segment_bytes() -> int:
    """Resident bytes of segments in this process."""
    text = Path("/proc/self/smaps").read_text()
    return sum(int(each) << 10 for each in _RESIDENT_OF_SEGMENT.findall(text))


def create(
    store: Store, partition: int = 0, *, topic_id: bytes = TOPIC_ID, **settings: object
) -> int:
    with_settings = LogSettings(**settings)  # type: ignore[arg-type]  # named by the tests
    new = NewPartition(topic_id, "topic", partition, 0, with_settings)
    return store.create_partitions([new])[0]


def read_all(reader: StoreReader, number: int, start: int | None = None) -> list[bytes]:
    """Every batch from `start` (default: the log start) to the log end, as a client does."""
    offset = reader.status.log_start_offset(number) if start is None else start
    end = reader.status.log_end_offset(number)
    batches: list[bytes] = []
    while offset < end:
        result = reader.read(number, offset, max_bytes=20_000, end_offset=end)
        assert result.buffers, f"nothing at {offset} below {end}"
        batches += split_batches(b"".join(result.buffers))
        assert result.next_offset > offset
        offset = result.next_offset
    return batches


def split_batches(data: bytes) -> list[bytes]:
    batches = []
    at = 0
    while at < len(data):
        size = read_header(data, at).batch_length + 12
        batches.append(data[at : at + size])
        at += size
    return batches


def offsets_of(batches: Iterable[bytes]) -> list[int]:
    return [read_header(batch).base_offset for batch in batches]


def as_stored(batch: bytes, base_offset: int, leader_epoch: int = 0) -> bytes:
    """The stored form of a client's batch."""
    return (
        base_offset.to_bytes(8, "big")
        + batch[8:12]
        + leader_epoch.to_bytes(4, "big", signed=True)
        + batch[16:]
    )


@dataclass
class ModelLog:
    """One partition of the model."""

    start: int = 0
    end: int = 0
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(base offset, end offset, bytes as stored)"""
    producers: dict[int, tuple[int, list[tuple[int, int, int]]]] = field(default_factory=dict)
    """Producer id to (epoch, [(first sequence, record count, base offset)])."""

    def append(self, batch: bytes, leader_epoch: int = 0) -> tuple[ErrorCode, int]:
        header = read_header(batch)
        count = header.record_count
        if header.producer_id >= 0:
            epoch, history = self.producers.get(header.producer_id, (-1, []))
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch == epoch:
                for first, known_count, base in history[-5:]:
                    if (first, known_count) == (header.base_sequence, count):
                        return ErrorCode.NONE, base
            if epoch >= 0:
                expected = 0
                if header.producer_epoch == epoch:
                    first, known_count, _ = history[-1]
                    expected = (first + known_count) % 2**31
                if header.base_sequence != expected:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            if header.producer_epoch != epoch:
                history = []
            history = [*history, (header.base_sequence, count, self.end)]
            self.producers[header.producer_id] = (header.producer_epoch, history)
        base = self.end
        self.end += count
        self.batches.append((base, self.end, as_stored(batch, base, leader_epoch)))
        return ErrorCode.NONE, base

    def visible(self) -> list[bytes]:
        """The batches that have records at or above the log start."""
        return [data for _, end, data in self.batches if end > self.start]


def set_durability(store: Store, durability: Durability) -> None:
    """Change the durability of an open store, and nothing else."""
    store.set_options(msgspec.structs.replace(store.options, durability=durability))
