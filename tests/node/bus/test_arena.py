"""The arena: allocation, reference counts, memory shared with and returned to the system."""

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.bus.arena import UNIT_BYTES, Arena


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    arena = Arena.create(tmp_path / "arena", 16 * UNIT_BYTES)
    yield arena
    arena.close()


def allocated(arena: Arena, size: int = UNIT_BYTES) -> int:
    block = arena.allocate(size)
    assert block is not None
    return block


def resident_bytes(path: Path) -> int:
    """The resident bytes of the arena at `path` in this process, as the kernel counts them."""
    inode = str(path.stat().st_ino)
    is_ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if len(fields) > 4 and "-" in fields[0]:
            is_ours = fields[4] == inode
        elif is_ours and line.startswith("Rss:"):
            return int(fields[1]) * 1024
    raise AssertionError("the arena is not mapped")


def test_another_process_reads_and_writes_the_same_bytes(tmp_path: Path, arena: Arena) -> None:
    arena.view[5:10] = b"hello"
    script = (
        "import sys; from pathlib import Path; from odradek.node.bus.arena import Arena\n"
        "arena = Arena.open(Path(sys.argv[1]))\n"
        "assert bytes(arena.view[5:10]) == b'hello' and arena.size == 16 << 20\n"
        "arena.view[5:10] = b'HELLO'\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "arena")], check=True, timeout=30)
    assert bytes(arena.view[5:10]) == b"HELLO"


def test_the_last_freed_block_is_allocated_next(arena: Arena) -> None:
    blocks = [allocated(arena) for _ in range(4)]
    for block in blocks:
        arena.release(block)
    assert [allocated(arena) for _ in range(4)] == blocks[::-1]


def test_a_block_is_freed_with_its_last_reference(arena: Arena) -> None:
    block = allocated(arena)
    arena.retain(block)
    arena.release(block)
    assert arena.used_bytes == UNIT_BYTES
    assert allocated(arena) != block
    arena.release(block)
    assert arena.used_bytes == UNIT_BYTES


def test_a_release_without_a_reference_is_an_assertion_error(arena: Arena) -> None:
    block = allocated(arena)
    arena.release(block)
    with pytest.raises(AssertionError, match="more often"):
        arena.release(block)


def test_a_full_arena_allocates_nothing_and_calls_on_freed(arena: Arena) -> None:
    blocks = [allocated(arena) for _ in range(16)]
    assert arena.allocate() is None
    freed: list[str] = []
    arena.on_freed = lambda: freed.append("room")
    arena.release(blocks[3])
    assert freed == ["room"]
    assert arena.allocate() == blocks[3]


def test_big_blocks_leave_a_quarter_for_small_ones(arena: Arena) -> None:
    assert arena.allocate(12 * UNIT_BYTES) is not None
    assert arena.allocate(2 * UNIT_BYTES) is None
    assert [arena.allocate() is not None for _ in range(5)] == [True] * 4 + [False]


def test_a_block_has_the_requested_size_and_overlaps_no_other(arena: Arena) -> None:
    block = allocated(arena, 3 * UNIT_BYTES + 1)
    assert arena.size_of(block) >= 3 * UNIT_BYTES + 1
    small = allocated(arena)
    start, end = arena.offset_of(block), arena.offset_of(block) + arena.size_of(block)
    assert not start <= arena.offset_of(small) < end


def test_the_memory_of_a_large_block_is_returned_at_once(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path / "big", 64 * UNIT_BYTES)
    block = allocated(arena, 40 * UNIT_BYTES)
    start = arena.offset_of(block)
    arena.view[start : start + 40 * UNIT_BYTES] = b"\1" * (40 * UNIT_BYTES)
    assert resident_bytes(tmp_path / "big") >= 40 * UNIT_BYTES
    arena.release(block)
    assert resident_bytes(tmp_path / "big") < UNIT_BYTES
    arena.close()


def test_trim_returns_only_what_was_not_needed_since_the_last_one(arena: Arena) -> None:
    blocks = [allocated(arena) for _ in range(6)]
    for block in blocks:
        arena.view[arena.offset_of(block)] = 1
        arena.release(block)
    arena.trim()
    for block in [allocated(arena), allocated(arena)]:
        arena.release(block)
    assert arena.resident_bytes == 6 * UNIT_BYTES
    arena.trim()
    assert arena.resident_bytes == 2 * UNIT_BYTES
    arena.trim()
    assert arena.resident_bytes == 0


def test_warm_memory_is_returned_when_a_longer_block_needs_its_units(arena: Arena) -> None:
    for block in [allocated(arena) for _ in range(16)]:
        arena.release(block)
    assert arena.allocate(12 * UNIT_BYTES) is not None


def test_a_successor_replaces_the_arena_under_the_same_name(tmp_path: Path, arena: Arena) -> None:
    arena.view[0] = 7
    successor = Arena.create(tmp_path / "arena", UNIT_BYTES)
    seen = Arena.open(tmp_path / "arena")
    assert seen.view[0] == 0
    assert seen.size == UNIT_BYTES
    arena.close()
    assert (tmp_path / "arena").exists()
    seen.close()
    successor.close()
    assert not (tmp_path / "arena").is_symlink()


def test_closing_with_a_frame_still_in_use_leaves_the_frame_readable(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path / "arena", UNIT_BYTES)
    arena.view[0:3] = b"abc"
    frame = arena.view[0:3]
    arena.close()
    assert bytes(frame) == b"abc"


@pytest.mark.parametrize("seed", range(5))
def test_random_use_never_overlaps_and_always_ends_empty(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    arena = Arena.create(tmp_path / "arena", 64 * UNIT_BYTES)
    held: dict[int, int] = {}
    for _ in range(2_000):
        if held and rng.random() < 0.5:
            block = rng.choice(list(held))
            arena.release(block)
            held[block] -= 1
            if not held[block]:
                del held[block]
        else:
            block_or_none = arena.allocate(rng.choice((1, 1, 1, 2, 3, 5, 9)) * UNIT_BYTES)
            if block_or_none is not None:
                held[block_or_none] = 1
                if rng.random() < 0.3:
                    arena.retain(block_or_none)
                    held[block_or_none] += 1
        if rng.random() < 0.02:
            arena.trim()
        spans = sorted((block, block + arena.size_of(block) // UNIT_BYTES) for block in held)
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
        assert arena.used_bytes == sum(arena.size_of(block) for block in held)
    for block, count in held.items():
        for _ in range(count):
            arena.release(block)
    arena.trim()
    arena.trim()
    assert arena.used_bytes == arena.resident_bytes == 0
    arena.close()
