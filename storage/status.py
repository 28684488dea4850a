"""The status table of a store: where each partition's log starts, ends and is stable.

A file of fixed 64-byte slots, mapped by the store's owner for writing and by every reader of the
node, so that a fetch learns how far it may read without asking anybody. A partition's slot is its
store-local number. Every word is an aligned int64 written by one store instruction, so that a
reader sees an old or a new value and never half of one; words of one slot are not read together,
and the owner writes them in an order in which every mixture is true (the end before what follows
it on the way up).

    word 0  log_start_offset        word 4  leader_epoch
    word 1  last_stable_offset      word 5  role (Role)
    word 2  high_watermark          word 6  watch: a byte per router
    word 3  log_end_offset          word 7  bytes in the active segment

The head is one page: magic, slot count, generation. The generation rises whenever the catalog
changed, after the change is on disk: what a reader remembers from the catalog is good as long as it
stands still. The table is rebuilt whenever the store is opened; nothing in it needs to survive.
"""

import mmap
import os
import threading
from enum import IntEnum
from pathlib import Path

from odradek.storage.environment import StorageError

_MAGIC = int.from_bytes(b"odradek1", "big")
_HEAD_BYTES = 4096
_HEAD_WORDS = _HEAD_BYTES // 8
_SLOT_SHIFT = 3
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

ROUTERS_MAX = 8
_NO_DESCRIPTOR = -1


class ReplicaRole(IntEnum):
    """What this replica is; ABSENT slots belong to no partition."""

    ABSENT = 0
    LEADER = 1
    FOLLOWER = 2


class StatusTable:
    """The mapped table. `create` for the owner, `open` for readers; both may set what is theirs."""

    def __init__(self, mapping: mmap.mmap, descriptor: int = _NO_DESCRIPTOR) -> None:
        self._mapping = mapping
        self._descriptor = descriptor
        self._room_bytes = 0
        self._bytes = memoryview(mapping)
        self.words = self._bytes.cast("q")
        """All words; a slot's start at `base(number)`. For the owner's and readers' hot paths."""
        self.slot_count: int = self.words[_SLOTS_AT]
        # Taking a lock is a full memory barrier, which Python has no other word for.
        self._barrier = threading.Lock()

    @classmethod
    def create(cls, path: Path, slot_count: int) -> "StatusTable":
        """The owner's table, all slots ABSENT except for their watch bytes. The file of an earlier
        owner is taken over, because readers have it mapped; its generation goes on rising."""
        size = _HEAD_BYTES + (slot_count << _SLOT_SHIFT) * 8
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # The file is sparse: only slots in use take space, and it never shrinks under a reader.
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
        """A reader's table. Raises StorageError while no owner has made it."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError as error:
            raise StorageError(f"{path.name}: {error}") from error
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
        """Rises with every change of the catalog."""
        return self.words[_GENERATION_AT]

    def raise_generation(self) -> None:
        """Tell readers to look at the catalog again; by the owner, after its commit."""
        with self._barrier:
            self.words[_GENERATION_AT] += 1

    def allocate_slots(self, slot_count: int) -> None:
        """Have the disk hold the first `slot_count` slots; by the owner, before it writes to them:
        a write to a mapped page that a full disk has no block for is not an error but SIGBUS.
        Raises StorageError."""
        end = _HEAD_BYTES + (slot_count << _SLOT_SHIFT) * 8
        if end <= self._room_bytes:
            return
        end = -(-end // _HEAD_BYTES) * _HEAD_BYTES
        try:
            os.posix_fallocate(self._descriptor, self._room_bytes, end - self._room_bytes)
        except OSError as error:
            raise StorageError(f"the status table: {error}") from error
        self._room_bytes = end

    @staticmethod
    def base(number: int) -> int:
        """Index of the first word of a slot."""
        return _HEAD_WORDS + (number << _SLOT_SHIFT)

    def log_start_offset(self, number: int) -> int:
        """First offset that may be read."""
        return self.words[_HEAD_WORDS + (number << _SLOT_SHIFT) + LOG_START_OFFSET]

    def last_stable_offset(self, number: int) -> int:
        """End (exclusive) of what read_committed may see."""
        return self.words[_HEAD_WORDS + (number << _SLOT_SHIFT) + LAST_STABLE_OFFSET]

    def high_watermark(self, number: int) -> int:
        """End (exclusive) of what consumers may see."""
        return self.words[_HEAD_WORDS + (number << _SLOT_SHIFT) + HIGH_WATERMARK]

    def log_end_offset(self, number: int) -> int:
        """End (exclusive) of what is committed in the store."""
        return self.words[_HEAD_WORDS + (number << _SLOT_SHIFT) + LOG_END_OFFSET]

    def leader_epoch(self, number: int) -> int:
        """The epoch this replica knows its partition to be in."""
        return self.words[_HEAD_WORDS + (number << _SLOT_SHIFT) + LEADER_EPOCH]

    def role(self, number: int) -> ReplicaRole:
        """What this replica is."""
        return ReplicaRole(self.words[_HEAD_WORDS + (number << _SLOT_SHIFT) + ROLE])

    def active_bytes(self, number: int) -> int:
        """Bytes of batches in the segment that is written; those of sealed ones the catalog has."""
        return self.words[_HEAD_WORDS + (number << _SLOT_SHIFT) + ACTIVE_BYTES]

    def set(self, number: int, word: int, value: int) -> None:
        """Write one word of a slot; by the owner."""
        self.words[_HEAD_WORDS + (number << _SLOT_SHIFT) + word] = value

    def clear(self, number: int) -> None:
        """Make a slot ABSENT. Its watch stays: who waits for the partition is told it vanished."""
        base = _HEAD_WORDS + (number << _SLOT_SHIFT)
        words = self.words
        words[base + ROLE] = ReplicaRole.ABSENT
        for word in range(ROLE):
            words[base + word] = 0
        words[base + ACTIVE_BYTES] = 0

    def set_watch(self, number: int, router: int = 0) -> None:
        """Ask for a notice when the partition next moves. Set it, then look at the offsets once
        more: what was committed before the look is seen, what comes later is told."""
        at = _HEAD_BYTES + (number << _SLOT_SHIFT) * 8 + _WATCH_BYTES_AT + router
        self._bytes[at] = 1
        with self._barrier:
            pass

    def take_watch(self, number: int) -> int:
        """Which routers asked (bit r for router r), cleared with the asking; by the owner, after
        the new offsets have been written and `publish` was called."""
        at = _HEAD_WORDS + (number << _SLOT_SHIFT) + WATCH
        if self.words[at] == 0:
            return 0
        first = at * 8
        routers = 0
        for router in range(ROUTERS_MAX):
            # Byte by byte: another router may be setting its own meanwhile.
            if self._bytes[first + router]:
                self._bytes[first + router] = 0
                routers |= 1 << router
        return routers

    def publish(self) -> None:
        """Everything written so far is visible to other processes before what comes next is read;
        with the barrier in `set_watch` no watch can be missed."""
        with self._barrier:
            pass

    def close(self) -> None:
        """Unmap the table; it must not be used afterwards."""
        self.words.release()
        self._bytes.release()
        self._mapping.close()
        if self._descriptor != _NO_DESCRIPTOR:
            os.close(self._descriptor)
