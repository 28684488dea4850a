"""Segments written in turns, and their state after a power loss."""

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from odradek.protocol.records import Record, build_batch
from odradek.storage.layout import KEY, OFFSET, STAMP, segment_path
from odradek.storage.segment import Segment

PAGE = 4096
LEAF_VALUE_MAX = 2038 - 8 - 12  # LMDB's me_nodemax less the heads of a node and our key


class WrittenBatch(NamedTuple):
    """A batch as it was committed; `batch` with its header as stored."""

    number: int
    turn: int
    log_end_before: int
    base_offset: int
    end_offset: int
    batch: bytes

    @property
    def value(self) -> bytes:
        return STAMP.pack(self.number, self.turn, self.log_end_before) + self.batch


class WriteHistory(NamedTuple):
    """A segment file at its last sync, and its content in the page cache at the power loss."""

    synced: bytes
    unsynced: bytes
    batches: list[WrittenBatch]
    log_ends: dict[int, int]  # at the segment's creation


def make_batch(dice: random.Random, *, base_offset: int, size: int) -> bytes:
    count = dice.randint(1, 3)
    records = [
        Record(base_offset + at, 1_000 + base_offset, b"k", dice.randbytes(size // count))
        for at in range(count)
    ]
    return build_batch(records, base_offset=base_offset, partition_leader_epoch=3)


def write_turn(segment: Segment, number: int, *, before: int, batch: bytes) -> None:
    """One batch in a transaction of its own."""
    with segment.begin_write() as transaction:
        value = STAMP.pack(number, transaction.id() & 0xFFFFFFFF, before) + batch
        transaction.put(KEY.pack(number, int.from_bytes(batch[:8], "big")), value)


def write_history(
    folder: Path, dice: random.Random, *, turns: int = 24, partitions: int = 5
) -> WriteHistory:
    """Random turns into a new segment, with a sync somewhere among them."""
    folder.mkdir(exist_ok=True)
    segment = Segment.create(folder, 1, map_bytes=64 << 20)
    path = segment_path(folder, 1)
    log_ends = {number: dice.choice([0, 17, 4_000_000_000]) for number in range(partitions)}
    ends = dict(log_ends)
    batches = []
    synced = path.read_bytes()
    synced_at = dice.randrange(turns)
    for at in range(turns):
        with segment.begin_write() as transaction:
            turn = transaction.id() & 0xFFFFFFFF
            for _ in range(dice.randint(1, 6)):
                number = dice.randrange(partitions)
                before = ends[number]
                base_offset = before + (dice.randint(1, 9) if dice.random() < 0.1 else 0)
                size = dice.choice([10, 100, 300, 1500, 2500, 9000])
                batch = make_batch(dice, base_offset=base_offset, size=size)
                end = base_offset + int.from_bytes(batch[23:27], "big") + 1
                written = WrittenBatch(number, turn, before, base_offset, end, batch)
                transaction.put(KEY.pack(number, base_offset), written.value)
                row = OFFSET.pack(base_offset)
                transaction.put(KEY.pack(number, base_offset), row, db=segment.timestamps)
                ends[number] = end
                batches.append(written)
        if at == synced_at:
            synced = path.read_bytes()
    return WriteHistory(synced, path.read_bytes(), batches, log_ends)


def tear(history: WriteHistory, dice: random.Random) -> bytes:
    """The file after a power loss: each page written since the sync is new, old, or was never
    filled; the tail may be missing and a meta page may be garbage."""
    torn = bytearray(history.unsynced)
    loss = dice.choice([0.0, 0.05, 0.3, 0.8])
    for at in range(0, len(torn), PAGE):
        before = history.synced[at : at + PAGE]
        if torn[at : at + PAGE] != before and dice.random() < loss:
            torn[at : at + PAGE] = dice.choice([before.ljust(PAGE, b"\0"), bytes(PAGE)])
    if dice.random() < 0.4:
        del torn[dice.randint(len(history.synced), len(torn)) :]
    if dice.random() < 0.3:
        at = dice.choice([0, PAGE])
        length = dice.choice([16, 64, PAGE])
        torn[at : at + length] = dice.choice([bytes(length), dice.randbytes(length)])
    return bytes(torn)


def mix_versions(versions: Sequence[bytes], dice: random.Random) -> bytes:
    """A file after a power loss. The first version was synced, the last one is in the page
    cache: every page has any of the versions, and pages that were never written are zeros."""
    length = len(dice.choice(versions)) if dice.random() < 0.3 else len(versions[-1])
    loss = dice.choice([0.0, 0.1, 0.5, 0.9])
    mixed = bytearray()
    for at in range(0, max(length, len(versions[0])), PAGE):
        version = dice.choice(versions) if dice.random() < loss else versions[-1]
        mixed += version[at : at + PAGE].ljust(PAGE, b"\0")
    return bytes(mixed)


def survivors(history: WriteHistory, torn: bytes) -> dict[int, list[WrittenBatch]]:
    """Each partition's whole batches up to the first gap, found by a search of the bytes. A
    small value must be in the node area of a page, a large one right behind a page header."""
    expected: dict[int, list[WrittenBatch]] = {}
    ends = dict(history.log_ends)
    for written in history.batches:
        if written.log_end_before != ends[written.number]:
            continue  # something before it is lost
        if _is_in(torn, written.value):
            expected.setdefault(written.number, []).append(written)
            ends[written.number] = written.end_offset
    return expected


def _is_in(torn: bytes, value: bytes) -> bool:
    if len(value) > LEAF_VALUE_MAX:
        return any(
            torn[at + 16 : at + 16 + len(value)] == value for at in range(0, len(torn), PAGE)
        )
    at = -1
    while (at := torn.find(value, at + 1)) >= 0:
        page_at = at - at % PAGE
        # What lies elsewhere (an overflow page's rest, the nodes that a split moved away) is
        # memory that LMDB did not clear.
        own_number, flags, upper = struct.unpack_from("<Q2xH2xH", torn, page_at)
        is_leaf = own_number == page_at // PAGE and flags == 2
        if is_leaf and page_at + PAGE <= len(torn) and at >= page_at + upper:
            return True
    return False
