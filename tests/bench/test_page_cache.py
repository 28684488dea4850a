from pathlib import Path

import pytest

from bench.page_cache import KEPT_FREE_BYTES, PageCache, free_memory_bytes, size_of_file

SIZE = (20 << 20) + 1


def test_a_file_of_free_memory_is_read_again_at_most_once_a_time(tmp_path: Path) -> None:
    if free_memory_bytes() < 2 * KEPT_FREE_BYTES:
        pytest.skip("no memory is free")
    cache = PageCache(tmp_path / "cached", most_bytes=SIZE)
    assert cache.size == (tmp_path / "cached").stat().st_size == SIZE
    # Memory stays free whatever is read.
    assert cache.fill() == SIZE
    assert cache.fill() == SIZE


@pytest.mark.parametrize(
    ("free_memory", "free_disk", "size"),
    [
        (KEPT_FREE_BYTES - 1, SIZE, 0),
        (KEPT_FREE_BYTES + SIZE, 2 * SIZE, SIZE),
        (KEPT_FREE_BYTES + SIZE, 2 * SIZE - 1, 0),
    ],
)
def test_a_file_takes_no_more_than_half_of_the_disk(
    free_memory: int, free_disk: int, size: int
) -> None:
    assert size_of_file(free_memory, free_disk) == size
