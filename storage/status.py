"""The status table of a store: each partition's log start, log end, high watermark and so on.

A file of fixed 64-byte slots in shared memory. The store's owner writes it, and every reader of the
node maps it, so that a fetch learns how far it may read without a message. A partition's slot is
its store-local number. Every word is an aligned int64 that is written by one instruction, so that a
reader never sees half a value. The words of a slot are not read atomically: the owner writes them
in an order in which every mixture of old and new values is valid.

    word 0  log_start_offset        word 4  leader_epoch
    word 1  last_stable_offset      word 5  role (Role)
    word 2  high_watermark          word 6  watch: a byte per router
    word 3  log_end_offset          word 7  bytes in the active segment

The head is one page: magic, slot count, generation. The generation is incremented after each change
of the catalog, when the change is on disk. A reader may cache the catalog as long as the generation
is the same. The table is rebuilt when the store is opened.
"""

import mmap
import os
import threading
from enum import IntEnum
from pathlib import Path
from struct import Struct

from odradek.storage.environment import StorageError, storage_errors
from odradek.storage.layout import FILE_MODE

_MAGIC = int.from_bytes(b"odradek1", "big")
_HEAD_BYTES = 4096
HEAD_WORDS = _HEAD_BYTES // 8
SLOT_SHIFT = 3
_MAGIC_AT = 0
_SLOTS_AT = 1
_GENERATION_AT = 2
_WATCH_BYTES_AT = 6 * 8

LOG_START_OFFSET = 0
LAST_STABLE_OFFSET = 1
HIGH_WATERMARK = 2
LOG_END_OFFSET = 3
LEADER_EPOCH = 4
ROLE = 5
WATCH = 6
ACTIVE_BYTES = 7

OFFSETS = Struct("=qqq")
"""The first words of a slot: see StatusTable.consumer_offsets."""

ROUTERS_MAX = 8
_NO_DESCRIPTOR = -1


class ReplicaRole(IntEnum):
    """The role of this replica. An ABSENT slot has no partition."""

    ABSENT = 0
    LEADER = 1
    FOLLOWER = 2


class StatusTable:
    """The mapped table. `create` is for the owner, `open` for readers, which may set watches."""

    def __init__(self, mapping: mmap.mmap, descriptor: int = _NO_DESCRIPTOR) -> None:
        self._mapping = mapping
        self._descriptor = descriptor
        self._room_bytes = 0
        self._bytes = memoryview(mapping)
        self.words = self._bytes.cast("q")
        """All words, for hot paths. A slot starts at HEAD_WORDS + (number << SLOT_SHIFT)."""
        self.slot_count: int = self.words[_SLOTS_AT]
        # Taking a lock is a full memory barrier. Python has no other.
        self._barrier = threading.Lock()

    @classmethod
    def create(cls, path: Path, slot_count: int) -> "StatusTable":
        """The owner's table. The file of an earlier owner is reused, because readers have it
        mapped. Its generation continues."""
        size = _HEAD_BYTES + (slot_count << SLOT_SHIFT) * 8
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            # The file is sparse and never shrinks.
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            os.posix_fallocate(descriptor, 0, _HEAD_BYTES)
            mapping = mmap.mmap(descriptor, 0)
        except OSError as error:
            os.close(descriptor)
            raise StorageError(f"{path.name}: {error}") from error
        words = memoryview(mapping).cast("q")
        used = words[_SLOTS_AT] if words[_MAGIC_AT] == _MAGIC else 0
        words[_SLOTS_AT] = max(slot_count, used)
        words[_MAGIC_AT] = _MAGIC
        words.release()
        return cls(mapping, descriptor)

    @classmethod
    def open(cls, path: Path) -> "StatusTable":
        """A reader's table. Raises StorageError if no owner has created it yet."""
        with storage_errors(path.name):
            descriptor = os.open(path, os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size < _HEAD_BYTES:
                raise StorageError(f"{path.name} is incomplete; try again")
            mapping = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        words = memoryview(mapping).cast("q")
        magic = words[_MAGIC_AT]
        words.release()
        if magic != _MAGIC:
            mapping.close()
            raise StorageError(f"{path.name} is not a status table")
        return cls(mapping)

    @property
    def generation(self) -> int:
        """Incremented with every change of the catalog."""
        return self.words[_GENERATION_AT]

    def raise_generation(self) -> None:
        """Make readers read the catalog again. By the owner, after its commit."""
        with self._barrier:
            self.words[_GENERATION_AT] += 1

    def allocate_slots(self, slot_count: int) -> None:
        """Allocate disk blocks for the first `slot_count` slots. By the owner, before it writes to
        them: a write to a mapped page without a block raises SIGBUS if the disk is full. Raises
        StorageError."""
        end = _HEAD_BYTES + (slot_count << SLOT_SHIFT) * 8
        if end <= self._room_bytes:
            return
        end = -(-end // _HEAD_BYTES) * _HEAD_BYTES
        with storage_errors("the status table"):
            os.posix_fallocate(self._descriptor, self._room_bytes, end - self._room_bytes)
        self._room_bytes = end

    def log_start_offset(self, number: int) -> int:
        """First offset that may be read."""
        return self.words[HEAD_WORDS + (number << SLOT_SHIFT) + LOG_START_OFFSET]

    def last_stable_offset(self, number: int) -> int:
        """End (exclusive) of what read_committed may see."""
        return self.words[HEAD_WORDS + (number << SLOT_SHIFT) + LAST_STABLE_OFFSET]

    def high_watermark(self, number: int) -> int:
        """End (exclusive) of what consumers may see."""
        return self.words[HEAD_WORDS + (number << SLOT_SHIFT) + HIGH_WATERMARK]

    def consumer_offsets(self, number: int) -> bytes:
        """Log start, last stable offset and high watermark, to be compared: OFFSETS packs them."""
        at = _HEAD_BYTES + (number << SLOT_SHIFT) * 8
        return self._bytes[at : at + OFFSETS.size].tobytes()

    def log_end_offset(self, number: int) -> int:
        """The offset of the next record (exclusive end of the log)."""
        return self.words[HEAD_WORDS + (number << SLOT_SHIFT) + LOG_END_OFFSET]

    def leader_epoch(self, number: int) -> int:
        """The partition's current leader epoch, as this replica knows it."""
        return self.words[HEAD_WORDS + (number << SLOT_SHIFT) + LEADER_EPOCH]

    def role(self, number: int) -> ReplicaRole:
        return ReplicaRole(self.words[HEAD_WORDS + (number << SLOT_SHIFT) + ROLE])

    def active_bytes(self, number: int) -> int:
        """Bytes of batches in the active segment. Those of sealed ones are in the catalog."""
        return self.words[HEAD_WORDS + (number << SLOT_SHIFT) + ACTIVE_BYTES]

    def set(self, number: int, word: int, value: int) -> None:
        """Write one word of a slot; by the owner."""
        self.words[HEAD_WORDS + (number << SLOT_SHIFT) + word] = value

    def clear(self, number: int) -> None:
        """Make a slot ABSENT. Its watches stay, so that waiting routers learn of the deletion."""
        base = HEAD_WORDS + (number << SLOT_SHIFT)
        words = self.words
        words[base + ROLE] = ReplicaRole.ABSENT
        for word in range(ROLE):
            words[base + word] = 0
        words[base + ACTIVE_BYTES] = 0

    def set_watch(self, number: int, router: int = 0) -> None:
        """Request a notification when the partition's offsets next change. Read the offsets once
        more after this call: later changes are notified."""
        at = _HEAD_BYTES + (number << SLOT_SHIFT) * 8 + _WATCH_BYTES_AT + router
        self._bytes[at] = 1
        with self._barrier:
            pass

    def take_watch(self, number: int) -> int:
        """Return and clear the watches (bit r for router r). By the owner, after it has written the
        new offsets and called `publish`."""
        at = HEAD_WORDS + (number << SLOT_SHIFT) + WATCH
        if self.words[at] == 0:
            return 0
        first = at * 8
        routers = 0
        for router in range(ROUTERS_MAX):
            # Byte by byte: another router may be setting its byte at the same time.
            if self._bytes[first + router]:
                self._bytes[first + router] = 0
                routers |= 1 << router
        return routers

    def publish(self) -> None:
        """Memory barrier: writes before it are visible to other processes before later reads. With
        the barrier in `set_watch` no watch is missed."""
        with self._barrier:
            pass

    def close(self) -> None:
        self.words.release()
        self._bytes.release()
        self._mapping.close()
        if self._descriptor != _NO_DESCRIPTOR:
            os.close(self._descriptor)
