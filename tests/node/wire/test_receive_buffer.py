"""The receive buffer: frames from any sequence of reads, with bounded memory and few copies."""

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.bus.arena import NO_BLOCK, UNIT_BYTES, Arena
from odradek.node.wire.receive_buffer import KEPT_BYTES_MAX, FrameReceiver, ReceiveBuffer


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    arena = Arena.create(tmp_path / "arena", 64 * UNIT_BYTES)
    yield arena
    arena.close()


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


class Reader:
    """Drives a FrameReceiver like a connection, with reads of given sizes."""

    def __init__(self, receive_buffer: ReceiveBuffer) -> None:
        self.receive_buffer = receive_buffer
        self.input = FrameReceiver(receive_buffer)
        self.frames: list[bytes] = []
        self.held: list[tuple[int, int, bytes]] = []
        self.retain_all = False
        self.largest_buffer = 0

    def feed(self, stream: bytes, size_of_read: int) -> None:
        at = 0
        while at < len(stream):
            buffer = self.input.next_buffer()
            assert len(buffer) > 0
            count = min(len(buffer), size_of_read, len(stream) - at)
            buffer[:count] = stream[at : at + count]
            at += count
            self.cut(*self.input.arrived(count))

    def cut(self, start: int, end: int) -> None:
        view = self.receive_buffer.arena.view
        size = 0
        while end - start >= 4:
            (length,) = struct.unpack_from(">i", view, start)
            if start + 4 + length > end:
                break
            frame = bytes(view[start + 4 : start + 4 + length])
            self.frames.append(frame)
            if self.retain_all:
                block = self.input.block_in_use
                self.receive_buffer.arena.retain(block)
                self.held.append((block, start + 4, frame))
            size = 4 + length
            start += size
        self.input.settle(start, end, size)

    def check_held(self) -> None:
        """Retained frames must not have changed."""
        for _, start, frame in self.held:
            assert self.receive_buffer.arena.view[start : start + len(frame)] == frame

    def let_go(self) -> None:
        for block, _, _ in self.held:
            self.receive_buffer.arena.release(block)
        self.held.clear()


@pytest.mark.parametrize("seed", range(12))
def test_frames_are_whole_after_any_reads_and_retained_ones_do_not_change(
    arena: Arena, seed: int
) -> None:
    rng = random.Random(seed)
    receive_buffer = ReceiveBuffer(arena)
    readers = [Reader(receive_buffer) for _ in range(3)]
    for reader in readers:
        reader.retain_all = rng.random() < 0.6
    sent: list[list[bytes]] = [[], [], []]
    streams = []
    for frames in sent:
        for _ in range(30):
            size = rng.choice((0, 1, 3, 200, 5_000, 70_000, 300_000, 900_000, 1_100_000))
            frames.append(rng.randbytes(rng.randint(max(0, size - 2), size)))
        streams.append(framed(*frames))
    at = [0, 0, 0]
    while any(at[index] < len(stream) for index, stream in enumerate(streams)):
        index = rng.randrange(3)
        take = rng.choice((1, 2, 4, 100, 4_096, 60_000, 500_000, 2_000_000))
        readers[index].feed(streams[index][at[index] : at[index] + take], take)
        at[index] += take
        readers[index].check_held()
        if rng.random() < 0.2 or arena.used_bytes > 40 * UNIT_BYTES:
            for reader in readers:
                reader.check_held()
                reader.let_go()
    for reader, frames in zip(readers, sent, strict=True):
        assert reader.frames == frames
        reader.check_held()
        reader.let_go()
        reader.input.release()
    receive_buffer.close()
    assert arena.used_bytes == 0


def test_a_connection_without_a_partial_frame_owns_no_memory(arena: Arena) -> None:
    receive_buffer = ReceiveBuffer(arena)
    reader = Reader(receive_buffer)
    reader.feed(framed(b"x" * 10_000, b"y" * 600_000), 64_000)
    assert reader.input.block == NO_BLOCK
    assert reader.input.unparsed_bytes == 0
    assert arena.used_bytes == UNIT_BYTES


def test_a_thousand_half_frames_hold_no_blocks(arena: Arena) -> None:
    receive_buffer = ReceiveBuffer(arena)
    readers = [Reader(receive_buffer) for _ in range(1_000)]
    for reader in readers:
        reader.feed(framed(b"z" * 1_000_000)[: KEPT_BYTES_MAX - 1], 1_000)
    assert arena.used_bytes == UNIT_BYTES


def test_a_huge_frame_gets_its_block_after_its_first_bytes(arena: Arena) -> None:
    receive_buffer = ReceiveBuffer(arena)
    reader = Reader(receive_buffer)
    reader.feed(struct.pack(">i", 40 << 20) + b"a" * 100_000, 10_000)
    assert arena.used_bytes == UNIT_BYTES
    reader.feed(b"a" * 100_000, 10_000)
    assert arena.used_bytes > 40 << 20


def test_the_position_goes_back_when_no_frame_is_retained(arena: Arena) -> None:
    receive_buffer = ReceiveBuffer(arena)
    reader = Reader(receive_buffer)
    reader.retain_all = True
    first = reader.input.next_buffer()
    reader.feed(framed(b"a" * 100), 200)
    assert len(reader.input.next_buffer()) < len(first)
    reader.let_go()
    assert len(reader.input.next_buffer()) == len(first)


def test_large_frames_of_equal_size_are_received_without_a_copy(arena: Arena) -> None:
    receive_buffer = ReceiveBuffer(arena)
    reader = Reader(receive_buffer)
    frame = b"f" * 900_000
    reader.feed(framed(frame), 1 << 20)
    starts = []
    for _ in range(5):
        stream = framed(frame)
        at = 0
        while at < len(stream):
            buffer = reader.input.next_buffer()
            # The buffer never reaches into the next frame.
            assert len(buffer) <= len(stream) - at
            count = min(len(buffer), 200_000)
            buffer[:count] = stream[at : at + count]
            at += count
            start, end = reader.input.arrived(count)
            starts.append(start)
            reader.cut(start, end)
    assert len(set(starts)) == 1
    assert len(reader.frames) == 6


def test_a_full_arena_stops_reading_and_loses_nothing(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path / "small", 2 * UNIT_BYTES)
    receive_buffer = ReceiveBuffer(arena)
    other = arena.allocate()
    assert other is not None
    reader = Reader(receive_buffer)
    reader.feed(framed(b"a" * 900_000)[:800_000], 1 << 20)
    assert reader.input.is_starved
    reader.cut(*reader.input.pending())
    assert reader.input.is_starved
    arena.release(other)
    reader.cut(*reader.input.pending())
    reader.feed(framed(b"a" * 900_000)[800_000:], 1 << 20)
    assert reader.frames == [b"a" * 900_000]
    arena.close()


def test_without_a_block_the_bytes_are_kept_outside_the_arena(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path / "small", UNIT_BYTES)
    other = arena.allocate()
    assert other is not None
    receive_buffer = ReceiveBuffer(arena)
    reader = Reader(receive_buffer)
    stream = framed(b"hello", b"world")
    reader.feed(stream[:12], 12)
    assert reader.input.is_starved
    assert reader.frames == []
    arena.release(other)
    reader.cut(*reader.input.pending())
    reader.feed(stream[12:], 100)
    assert reader.frames == [b"hello", b"world"]
    arena.close()


def test_the_rest_of_a_closed_connection_does_not_overwrite_retained_frames(
    arena: Arena,
) -> None:
    receive_buffer = ReceiveBuffer(arena)
    reader = Reader(receive_buffer)
    reader.retain_all = True
    buffer = reader.input.next_buffer()
    stream = framed(b"kept" * 10) + b"\xff\xff\xff\xff"
    buffer[: len(stream)] = stream
    start, end = reader.input.arrived(len(stream))
    receive_buffer.arena.retain(receive_buffer.block)
    reader.input.discard(end)
    other = Reader(receive_buffer)
    other.feed(framed(b"other" * 10), 1_000)
    assert arena.view[start : start + 44] == stream[:44]
    receive_buffer.arena.release(receive_buffer.block)


def test_a_buffer_that_was_not_used_is_forgotten(tmp_path: Path) -> None:
    """A read may bring nothing: of a TLS record that is not complete, or from the kernel."""
    arena = Arena.create(tmp_path / "arena", 2 * UNIT_BYTES)
    blocks = [arena.allocate(), arena.allocate()]
    receive_buffer = ReceiveBuffer(arena)
    reader = Reader(receive_buffer)
    assert receive_buffer.is_spilling
    reader.input.next_buffer()
    for block in blocks:
        assert block is not None
        arena.release(block)
    reader.feed(framed(b"whole"), 100)
    assert reader.frames == [b"whole"]
    assert not reader.input.is_starved
    reader.input.release()
    receive_buffer.close()
    arena.close()
