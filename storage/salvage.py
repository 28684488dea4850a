"""Finds all intact batches of a torn segment, and chains them to logs.

A batch is checked by itself: its stamp has the partition and the log end before it, its header has
a known format, and its CRC covers the rest. All pages of the file are scanned, without any tree:
large values are at the start of overflow pages, small ones in the nodes of leaf pages and in the
journal. Old pages are found, too, so that a batch may appear more than once, also with batches of
failed turns. `chain` selects the valid ones.

`chain` returns a partition's log from a given end on, without gaps and wrong CRCs, up to the first
batch that is lost. Called by recovery.py.
"""

from array import array
from typing import NamedTuple

from odradek.protocol.errors import ProtocolError
from odradek.protocol.records import batch_size, is_crc_valid, read_header
from odradek.storage.journal import frames
from odradek.storage.layout import KEY, KEY_SIZE, STAMP, STAMP_SIZE
from odradek.storage.mapped_pages import MAPPED_PAGES
from odradek.storage.pages import LEAF, OVERFLOW, PAGE_HEAD_SIZE, PageError, PageFile

_FIELDS = 6
_PAGES_PER_NOTE = 256
_NO_JOURNAL = memoryview(b"")


class BatchLocation(NamedTuple):
    """An intact batch: `size` bytes at `position`. Positions after the pages are in the journal.

    Offsets are [base_offset, end_offset). `log_end_before` was the log end offset before the
    append: the offsets from there to `base_offset` are a gap that the log had."""

    log_end_before: int
    turn: int
    position: int
    base_offset: int
    end_offset: int
    size: int


def parse_whole_value(
    content: memoryview, *, is_exact: bool
) -> tuple[int, int, int, int, int, int] | None:
    """(number, turn, log end before, base offset, end offset, size of the batch) of the value that
    `content` starts with, or that it is (`is_exact`); None if it is not whole, by form or CRC."""
    if len(content) < STAMP_SIZE:
        return None
    number, turn, log_end_before = STAMP.unpack_from(content)
    try:
        header = read_header(content, STAMP_SIZE)
        size = batch_size(content, STAMP_SIZE)
    except ProtocolError:
        return None
    if is_exact and len(content) != STAMP_SIZE + size:
        return None
    if not 0 <= log_end_before <= header.base_offset or header.last_offset_delta < 0:
        return None
    if not is_crc_valid(content, STAMP_SIZE, size):
        return None
    end_offset = header.base_offset + header.last_offset_delta + 1
    return number, turn, log_end_before, header.base_offset, end_offset, size


class Salvage:
    """All intact batches of a file and its journal, by partition number. Stored in flat arrays,
    because a segment may have millions."""

    def __init__(self, pages: PageFile, journal: memoryview = _NO_JOURNAL) -> None:
        self._pages = pages
        self._journal = journal
        self._rows: dict[int, array[int]] = {}

    @property
    def numbers(self) -> list[int]:
        return sorted(self._rows)

    def scan(self) -> None:
        pages = self._pages
        number = noted = 0
        while number < pages.page_count:
            number += self._scan_page(number)
            if number >= noted + _PAGES_PER_NOTE:
                MAPPED_PAGES.note((number - noted) * pages.page_size)
                noted = number
        journal_at = len(pages.view)
        for at, end in frames(self._journal):
            MAPPED_PAGES.note(end - at)
            while (value := parse_whole_value(self._journal[at:end], is_exact=False)) is not None:
                self._note(value, journal_at + at)
                at += STAMP_SIZE + value[5]

    def _scan_page(self, number: int) -> int:
        """Add the batches of one page. Returns the number of pages that were read: all overflow
        pages of a value only if its batch is intact, because else they may have other content."""
        pages = self._pages
        try:
            flags, _, _ = pages.head(number)
            if flags == OVERFLOW:
                count, content = pages.overflow(number)
                position = number * pages.page_size + PAGE_HEAD_SIZE
                return count if self._take(content, position, None) else 1
            if flags == LEAF:
                for node in pages.leaf_nodes(number):
                    if len(node.key) == KEY_SIZE and not node.flags:
                        self._take(node.data, node.position, node.key)
        except PageError:
            pass  # a malformed page has no batches
        return 1

    def _take(self, content: memoryview, position: int, key: bytes | None) -> bool:
        """Add the value at the start of `content`, or all of `content` if there is a key. False if
        the batch is not intact or does not match the key."""
        value = parse_whole_value(content, is_exact=key is not None)
        if value is None or (key is not None and KEY.unpack(key) != (value[0], value[3])):
            return False
        self._note(value, position)
        return True

    def _note(self, value: tuple[int, int, int, int, int, int], position: int) -> None:
        number, turn, log_end_before, base_offset, end_offset, size = value
        rows = self._rows.get(number)
        if rows is None:
            rows = self._rows[number] = array("q")
        rows.extend((log_end_before, turn, position + STAMP_SIZE, base_offset, end_offset, size))

    def found(self, number: int) -> list[BatchLocation]:
        """All copies of the partition's batches, sorted by log end before them and turn. Those in
        the journal, which has no failed turns, come after those in pages."""
        rows = self._rows.get(number, array("q"))
        columns = [rows[at::_FIELDS] for at in range(_FIELDS)]
        return sorted(map(BatchLocation._make, zip(*columns, strict=True)))

    def chain(self, number: int, log_end: int) -> list[BatchLocation]:
        """The partition's log from `log_end` on: each batch starts where the one before ended.

        If several batches claim one position, the one of the latest turn counts: the turns of the
        others failed.
        """
        candidates = {found.log_end_before: found for found in self.found(number)}
        chain = []
        while (following := candidates.pop(log_end, None)) is not None:
            chain.append(following)
            log_end = following.end_offset
        return chain

    def batch(self, found: BatchLocation) -> memoryview:
        """The record batch without its stamp, as a view of the file."""
        MAPPED_PAGES.note(found.size)
        view, at = self._pages.view, found.position
        if at >= len(view):
            view, at = self._journal, at - len(view)
        return view[at : at + found.size]
