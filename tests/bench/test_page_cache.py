from pathlib import Path

import pytest

from bench.page_cache import KEPT_FREE_BYTES, PageCache, size_of_file

SIZE = (20 << 20) + 1


def test_pages_are_read_again_while_memory_is_free(tmp_path: Path) -> None:
    free = KEPT_FREE_BYTES + SIZE
    cache = PageCache(tmp_path / "cached", lambda: free)
    assert cache.size == (tmp_path / "cached").stat().st_size == SIZE
    # Memory stays free whatever is read: each page is read once.
    assert cache.fill() == SIZE
    assert cache.fill() == SIZE
    free = KEPT_FREE_BYTES
    assert cache.fill() == 0


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
