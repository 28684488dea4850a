"""A one-way ring of messages in shared memory between two processes of a node.

ZeroMQ passes every message to an I/O thread on each side, which two running processes do not need.
The writer puts a message into the ring, and wakes the reader only if it sleeps (wakeup_pipe.py). A
reader without messages sets its sleep flag, checks the ring once more, and sleeps. One invariant: a
reader that sleeps with messages in the ring is being woken.

Layout, native byte order: word 0 the reader's position, word 8 the writer's, word 16 whether the
reader sleeps (each on a cache line of its own), then from byte 192 on the messages: u32 length,
bytes, padding to eight. A length of 0xFFFFFFFF means that the message is at the start of the ring.
Positions only increase.
"""

import threading
from struct import Struct

HEADER_BYTES = 192
_READ, _WRITTEN, _ASLEEP = 0, 8, 16
_LENGTH = Struct("=I")
_WRAP = 0xFFFFFFFF


def ring_capacity(memory: memoryview) -> int:
    """Bytes for messages in a ring of this memory."""
    return (len(memory) - HEADER_BYTES) & ~7


class RingWriter:
    """The writing end. `memory` must be zeroed before either end uses it."""

    __slots__ = ("_barrier", "_capacity", "_data", "_read", "_words", "_written")

    def __init__(self, memory: memoryview) -> None:
        self._capacity = ring_capacity(memory)
        self._words = memory[:HEADER_BYTES].cast("Q")
        self._data = memory[HEADER_BYTES : HEADER_BYTES + self._capacity]
        self._barrier = threading.Lock()
        self._written = self._words[_WRITTEN]
        self._read = self._words[_READ]

    @property
    def message_bytes_max(self) -> int:
        """The largest message that fits into an empty ring."""
        return self._capacity // 2 - 16

    def write(self, payload: bytes) -> bool:
        """Write a message. False if there is no room for it now."""
        capacity = self._capacity
        at = self._written % capacity
        size = (len(payload) + 11) & ~7
        skipped = capacity - at if at + size > capacity else 0
        if self._written + skipped + size - self._read > capacity:
            self._read = self._words[_READ]
            if self._written + skipped + size - self._read > capacity:
                return False
        if skipped:
            _LENGTH.pack_into(self._data, at, _WRAP)
            at = 0
        _LENGTH.pack_into(self._data, at, len(payload))
        self._data[at + 4 : at + 4 + len(payload)] = payload
        self._written += skipped + size
        # Taking a lock orders the bytes before the position on every processor.
        with self._barrier:
            self._words[_WRITTEN] = self._written
        return True

    def must_wake(self) -> bool:
        """Whether the reader sleeps. To be called after `write`. True once per sleep."""
        with self._barrier:
            pass
        if self._words[_ASLEEP]:
            self._words[_ASLEEP] = 0
            return True
        return False


class RingReader:
    """The reading end."""

    __slots__ = ("_barrier", "_capacity", "_data", "_read", "_words")

    def __init__(self, memory: memoryview) -> None:
        self._capacity = ring_capacity(memory)
        self._words = memory[:HEADER_BYTES].cast("Q")
        self._data = memory[HEADER_BYTES : HEADER_BYTES + self._capacity]
        self._barrier = threading.Lock()
        self._read = self._words[_READ]

    def read(self) -> bytes | None:
        """The next message, None if there is none."""
        read = self._read
        if self._words[_WRITTEN] == read:
            return None
        with self._barrier:
            pass
        capacity = self._capacity
        at = read % capacity
        (length,) = _LENGTH.unpack_from(self._data, at)
        if length == _WRAP:
            read += capacity - at
            at = 0
            (length,) = _LENGTH.unpack_from(self._data, 0)
        payload = bytes(self._data[at + 4 : at + 4 + length])
        self._read = read + ((length + 11) & ~7)
        with self._barrier:
            self._words[_READ] = self._read
        return payload

    @property
    def has_message(self) -> bool:
        """Whether `read` returns one now."""
        return self._words[_WRITTEN] != self._read

    def fall_asleep(self) -> bool:
        """Set the sleep flag. False if a message has come in the meantime."""
        self._words[_ASLEEP] = 1
        with self._barrier:
            pass
        if self.has_message:
            self._words[_ASLEEP] = 0
            return False
        return True

    def wake_up(self) -> None:
        """Clear the sleep flag."""
        self._words[_ASLEEP] = 0
