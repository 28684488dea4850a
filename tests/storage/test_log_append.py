"""What an append is made of."""

from odradek.storage.log_append import LogAppend
from odradek.storage.validation import AppendOrigin


def test_bytes_are_copied_so_that_headers_can_be_rewritten() -> None:
    batches = bytes(100)
    append = LogAppend.of_bytes(batches, AppendOrigin.COORDINATOR)
    append.arena[3] = 1
    assert batches == bytes(100)
    assert (append.start, append.length, append.origin) == (0, 100, AppendOrigin.COORDINATOR)
    assert not append.is_prepared


def test_content_that_replaces_that_of_the_arena_has_no_headroom() -> None:
    append = LogAppend(memoryview(bytearray(100)), 20, 30, has_headroom=True)
    append.replace(memoryview(b"abc"))
    assert (bytes(append.arena), append.start, append.length) == (b"abc", 0, 3)
    assert not append.has_headroom
