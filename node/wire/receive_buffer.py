"""Receives the bytes of connections into the arena, until they are whole frames.

All connections of a router read into one shared *receive block* of the arena. A connection without
a partial frame owns no memory, so that ten thousand idle ones cost nothing. `FrameReceiver` is the
receiving half of one connection. What it keeps between two reads is, by size: nothing; up to 4 KiB
in a bytes object of its own; or a block of the arena, where the rest of the frame is received
behind what is there. Bytes are copied only when a frame does not fit behind its start.

One invariant: between `next_buffer` and `arrived` nothing else uses the receive block (the event
loop reads in between and does nothing else), and between `arrived` and `settle` the bytes
`[start, end)` stay where they are. Called by connection.py only.
"""

from odradek.node.bus.arena import NO_BLOCK, UNIT_BYTES, Arena
from odradek.node.wire.framing import LENGTH_BYTES, read_length

KEPT_BYTES_MAX = 4096
"""A partial frame up to this size is kept outside the arena."""

LARGE_FRAME_BYTES = 256 * 1024
"""The buffer of a larger frame ends with the frame, so that nothing of the next one must be
moved."""

HUGE_FRAME_BYTES = 4 << 20
"""A larger frame gets its block only after `HUGE_FRAME_PROOF_BYTES` of it have arrived."""

HUGE_FRAME_PROOF_BYTES = 128 * 1024

_TAIL_BYTES_MIN = 32 * 1024
_SPILL_BYTES = 16 * 1024


class ReceiveBuffer:
    """The block that all connections read into, one at a time.

    `[position, end)` is free; `tail` is a view of it. When no frame in the block is retained, the
    position goes back to the start, so that the same cache lines are written again. While the arena
    has no room, `is_spilling` is set, and connections read into `spill`, a small buffer outside it.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.spill = memoryview(bytearray(_SPILL_BYTES))
        self.block = NO_BLOCK
        self._base = self.position = self.end = 0
        self.is_spilling = True
        self.tail = self._whole = self.spill
        self._replace()

    def rewind(self) -> None:
        """Restart at the beginning if no frame in the block is retained."""
        if self.is_spilling:
            self._replace()
        elif self.position != self._base and self.arena.references(self.block) == 1:
            self.position = self._base
            self.tail = self._whole

    def advance(self, position: int) -> None:
        """The bytes before `position` were parsed."""
        if self.arena.references(self.block) == 1:
            self.position = self._base
            self.tail = self._whole
        elif self.end - position < _TAIL_BYTES_MIN:
            self.arena.release(self.block)
            self._replace()
        else:
            self.position = position
            self.tail = self.arena.view[position : self.end]

    def make_room(self, size: int) -> bool:
        """Make room for `size` bytes and a useful read after the position. False if there is
        none."""
        self.rewind()
        if self.is_spilling:
            return False
        if self.end - self.position >= size + _TAIL_BYTES_MIN:
            return True
        block = self.block
        if not self.hand_over_block():
            return False
        self.arena.release(block)
        return True

    def hand_over_block(self) -> bool:
        """Leave the block and its reference to the caller, if a new block can be allocated."""
        fresh = self.arena.allocate()
        if fresh is None:
            return False
        self._take(fresh)
        return True

    def close(self) -> None:
        if not self.is_spilling:
            self.arena.release(self.block)
            self.block = NO_BLOCK
            self.is_spilling = True
            self.tail = self._whole = self.spill

    def _replace(self) -> None:
        fresh = self.arena.allocate()
        if fresh is not None:
            self._take(fresh)
        else:
            self.block = NO_BLOCK
            self.is_spilling = True

    def _take(self, block: int) -> None:
        self.block = block
        self.is_spilling = False
        self._base = self.position = self.arena.offset_of(block)
        self.end = self._base + UNIT_BYTES
        self.tail = self._whole = self.arena.view[self._base : self.end]


class FrameReceiver:
    """The receiving half of one connection: `next_buffer`, `arrived`, parse frames, `settle`.

    Unparsed bytes are in `block`, the connection's own, or else in `_kept`. `is_starved`: the arena
    had no room. Reading must stop until a block was freed; then `pending` tries again.
    """

    __slots__ = (
        "_end",
        "_expected",
        "_is_spilled",
        "_kept",
        "_limit",
        "_receive_buffer",
        "_start",
        "block",
        "is_starved",
    )

    def __init__(self, receive_buffer: ReceiveBuffer) -> None:
        self._receive_buffer = receive_buffer
        self._kept = b""
        self._start = self._end = self._limit = 0
        # Bytes of the large frame that is coming: the one that has begun, or one like the last.
        self._expected = 0
        self._is_spilled = False
        self.block = NO_BLOCK
        self.is_starved = False

    @property
    def block_in_use(self) -> int:
        """The block of the frames that are being parsed. Retain it to keep them."""
        return self._receive_buffer.block if self.block == NO_BLOCK else self.block

    @property
    def unparsed_bytes(self) -> int:
        """Bytes not parsed yet: a partial frame, or whole ones if reading is paused."""
        return len(self._kept) if self.block == NO_BLOCK else self._end - self._start

    def next_buffer(self) -> memoryview:
        """The buffer for the next bytes. Never empty. A second call before `arrived` replaces the
        first one."""
        receive_buffer = self._receive_buffer
        self._is_spilled = False
        if self.block != NO_BLOCK:
            return receive_buffer.arena.view[self._end : self._limit]
        if self._expected and self._begin_expected():
            return receive_buffer.arena.view[self._end : self._limit]
        if self._kept:
            if receive_buffer.make_room(len(self._kept)):
                start = receive_buffer.position + len(self._kept)
                receive_buffer.arena.view[receive_buffer.position : start] = self._kept
                return receive_buffer.arena.view[start : receive_buffer.end]
            self._is_spilled = True
            return receive_buffer.spill
        receive_buffer.rewind()
        if receive_buffer.is_spilling:
            self._is_spilled = True
            return receive_buffer.spill
        return receive_buffer.tail

    def arrived(self, count: int) -> tuple[int, int]:
        """`count` bytes were received. `[start, end)` of the arena can be parsed now."""
        if self.block != NO_BLOCK:
            self._end += count
            return self._start, self._end
        receive_buffer = self._receive_buffer
        if self._is_spilled:
            self._is_spilled = False
            self._kept += bytes(receive_buffer.spill[:count])
            self.is_starved = True
            return 0, 0
        start = receive_buffer.position
        if not self._kept:
            return start, start + count
        end = start + len(self._kept) + count
        self._kept = b""
        return start, end

    def pending(self) -> tuple[int, int]:
        """What an earlier `settle` left, ready to be parsed: `[start, end)`. Empty if there is
        nothing, or no room in the arena."""
        self.is_starved = False
        if self.block != NO_BLOCK:
            return self._start, self._end
        kept = self._kept
        if not kept:
            return 0, 0
        receive_buffer = self._receive_buffer
        if len(kept) <= HUGE_FRAME_PROOF_BYTES:
            if receive_buffer.make_room(len(kept)):
                start = receive_buffer.position
                receive_buffer.arena.view[start : start + len(kept)] = kept
                self._kept = b""
                return start, start + len(kept)
        elif self._begin(len(kept)):
            return self._start, self._end
        self.is_starved = True
        return 0, 0

    def settle(self, start: int, end: int, last_bytes: int) -> None:
        """Everything before `start` was parsed, the last frame with `last_bytes` (0: none).

        Decides where the bytes `[start, end)` are kept until more arrive.
        """
        if last_bytes:
            self._expected = last_bytes if last_bytes >= LARGE_FRAME_BYTES else 0
        if self.block != NO_BLOCK:
            if start == end:
                self.release()
            else:
                self._settle_in_own_block(start, end)
        elif start != end:
            self._settle_in_receive_buffer(start, end)
        elif start:
            self._receive_buffer.advance(start)

    def discard(self, end: int) -> None:
        """The connection ends: nothing before `end` is parsed any more. Retained frames stay."""
        if self.block == NO_BLOCK and end:
            self._receive_buffer.advance(end)
        self.release()

    def take_away(self, bytes_max: int) -> bytes | None:
        """Remove what was received and not parsed. None if these are more bytes, or if the arena
        has no room."""
        if self.unparsed_bytes > bytes_max:
            return None
        start, end = self.pending()
        if self.is_starved:
            return None
        received = bytes(self._receive_buffer.arena.view[start:end])
        self.discard(end)
        return received

    def give_back(self, received: bytes) -> None:
        """Bytes that come before those that are read next. Only after `take_away`."""
        assert not self.unparsed_bytes
        self._kept = received

    def release(self) -> None:
        """Release all memory."""
        self._kept = b""
        if self.block != NO_BLOCK:
            block, self.block = self.block, NO_BLOCK
            self._receive_buffer.arena.release(block)

    def _settle_in_receive_buffer(self, start: int, end: int) -> None:
        receive_buffer = self._receive_buffer
        size = self._frame_bytes(start, end)
        if not self._keep_if_small(start, end, size):
            block = receive_buffer.block
            if start + size <= receive_buffer.end and receive_buffer.hand_over_block():
                # The connection keeps the rest of the receive block: nothing is copied.
                self._own(block, start, end, size)
                return
            if not self._move_to_new_block(start, end, size):
                self._kept = bytes(receive_buffer.arena.view[start:end])
                self.is_starved = True
        receive_buffer.advance(start)

    def _settle_in_own_block(self, start: int, end: int) -> None:
        arena = self._receive_buffer.arena
        block = self.block
        block_end = arena.offset_of(block) + arena.size_of(block)
        size = self._frame_bytes(start, end)
        if self._keep_if_small(start, end, size):
            self.block = NO_BLOCK
            arena.release(block)
        elif start + size <= block_end:
            self._own(block, start, end, size)
        elif self._move_to_new_block(start, end, size):
            arena.release(block)
        else:
            self._start, self._end = start, end
            self.is_starved = True

    def _keep_if_small(self, start: int, end: int, size: int) -> bool:
        """Keep the bytes outside the arena if they are few."""
        if end - start > (HUGE_FRAME_PROOF_BYTES if size > HUGE_FRAME_BYTES else KEPT_BYTES_MAX):
            return False
        self._kept = bytes(self._receive_buffer.arena.view[start:end])
        if end - start >= LENGTH_BYTES:
            self._expected = size if size >= LARGE_FRAME_BYTES else 0
        return True

    def _move_to_new_block(self, start: int, end: int, size: int) -> bool:
        """Move the bytes `[start, end)` to a new block that the whole frame fits in."""
        arena = self._receive_buffer.arena
        block = arena.allocate(max(size, end - start))
        if block is None:
            return False
        base = arena.offset_of(block)
        arena.view[base : base + end - start] = arena.view[start:end]
        self._own(block, base, base + end - start, size)
        return True

    def _own(self, block: int, start: int, end: int, size: int) -> None:
        arena = self._receive_buffer.arena
        self.block = block
        self._start, self._end = start, end
        if size >= LARGE_FRAME_BYTES:
            self._limit = start + size
        else:
            self._limit = arena.offset_of(block) + arena.size_of(block)

    def _begin_expected(self) -> bool:
        """Allocate a block for the expected large frame, but for a huge one only after its first
        bytes."""
        if self._expected > HUGE_FRAME_BYTES and 0 < len(self._kept) < HUGE_FRAME_PROOF_BYTES:
            return False
        return self._begin(self._expected)

    def _begin(self, size: int) -> bool:
        """Allocate a block for a frame of `size` bytes. It begins with the bytes that are kept."""
        arena = self._receive_buffer.arena
        kept = self._kept
        size = max(size, len(kept) + LENGTH_BYTES)
        block = arena.allocate(size)
        if block is None:
            return False
        base = arena.offset_of(block)
        arena.view[base : base + len(kept)] = kept
        self._kept = b""
        self.block = block
        self._start, self._end, self._limit = base, base + len(kept), base + size
        return True

    def _frame_bytes(self, start: int, end: int) -> int:
        """Length of the first unparsed frame with its prefix, or of the prefix if that is
        incomplete."""
        if end - start < LENGTH_BYTES:
            return LENGTH_BYTES
        (length,) = read_length(self._receive_buffer.arena.view, start)
        return LENGTH_BYTES + int(length)
