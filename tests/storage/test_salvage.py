"""Which of the found batches belong to the log."""

import random
from pathlib import Path

from odradek.protocol.records import Record, build_batch
from odradek.storage.journal import Journal, map_file
from odradek.storage.layout import STAMP, journal_path, segment_path
from odradek.storage.pages import PageFile
from odradek.storage.salvage import Salvage, parse_whole_value
from odradek.storage.segment import Segment
from tests.support.power_loss import write_turn


def batch_of(text: str, *, base_offset: int, count: int = 1) -> bytes:
    records = [Record(base_offset + at, 5, None, text.encode()) for at in range(count)]
    return build_batch(records, base_offset=base_offset)


def value_of(batch: bytes, *, number: int = 1, turn: int = 2, before: int = 0) -> memoryview:
    return memoryview(STAMP.pack(number, turn, before) + batch)


def salvage_of(folder: Path, *puts: tuple[int, int, bytes]) -> Salvage:
    """A salvage of pages written by one turn for each (number, log end before, batch). Batches
    are large, so that overwritten values stay in the file."""
    segment = Segment.create(folder, 1, map_bytes=1 << 20)
    for number, before, batch in puts:
        write_turn(segment, number, before=before, batch=batch)
    salvage = Salvage(PageFile(map_file(segment_path(folder, 1))))
    salvage.scan()
    return salvage


def test_a_value_is_whole_only_with_every_byte_of_its_batch() -> None:
    batch = batch_of("text", base_offset=10, count=3)
    value = value_of(batch, number=4, turn=9, before=8)
    assert parse_whole_value(value, is_exact=True) == (4, 9, 8, 10, 13, len(batch))
    followed = memoryview(bytes(value) + b"rest of the page")
    assert parse_whole_value(followed, is_exact=False) == (4, 9, 8, 10, 13, len(batch))
    assert parse_whole_value(followed, is_exact=True) is None
    for at in range(len(value)):
        assert parse_whole_value(value[:at], is_exact=False) is None
    for at in range(16 + 16, len(value)):  # from the magic on; the CRC covers what is after it
        changed = bytearray(value)
        changed[at] ^= 0x40
        assert parse_whole_value(memoryview(changed), is_exact=False) is None


def test_a_log_end_after_the_batch_is_invalid() -> None:
    assert (
        parse_whole_value(value_of(batch_of("x", base_offset=5), before=6), is_exact=True) is None
    )


def test_a_chain_follows_the_log_ends_across_gaps_of_the_log(tmp_path: Path) -> None:
    first = batch_of("a" * 3000, base_offset=0, count=2)
    after_gap = batch_of("b", base_offset=7)
    unreachable = batch_of("c", base_offset=9)
    salvage = salvage_of(tmp_path, (1, 0, first), (1, 2, after_gap), (1, 9, unreachable))
    chain = salvage.chain(1, 0)
    assert [bytes(salvage.batch(found)) for found in chain] == [first, after_gap]
    assert [bytes(salvage.batch(f)) for f in salvage.chain(1, 9)] == [unreachable]
    assert salvage.chain(1, 5) == []
    assert salvage.chain(2, 0) == []


def test_the_batch_of_the_later_turn_counts(tmp_path: Path) -> None:
    old = batch_of("old" * 1000, base_offset=0, count=2)
    old_next = batch_of("old" * 1000, base_offset=2)
    new = batch_of("new" * 2000, base_offset=0, count=3)
    salvage = salvage_of(tmp_path, (1, 0, old), (1, 2, old_next), (1, 0, new))
    assert [bytes(salvage.batch(found)) for found in salvage.chain(1, 0)] == [new]


def test_a_copy_of_a_segment_inside_a_batch_is_not_taken_for_pages(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    salvage_of(inner, (1, 0, batch_of("secret" * 1000, base_offset=0)))
    payload = segment_path(inner, 1).read_bytes()
    record = Record(0, 5, random.Random(1).randbytes(3), payload)
    outer = build_batch([record], base_offset=0)
    salvage = salvage_of(tmp_path, (2, 0, outer))
    assert salvage.numbers == [2]
    assert [bytes(salvage.batch(found)) for found in salvage.found(2)] == [outer]


def test_a_batch_that_is_in_no_page_is_taken_from_the_journal(tmp_path: Path) -> None:
    first, second = batch_of("first", base_offset=0), batch_of("second", base_offset=1)
    failed = batch_of("failed", base_offset=1, count=2)
    segment = Segment.create(tmp_path, 1, map_bytes=1 << 20)
    write_turn(segment, 1, before=0, batch=first)
    write_turn(segment, 1, before=1, batch=failed)
    with segment.begin() as transaction:
        turn = transaction.id()
    journal = Journal.create(tmp_path, 1)
    # The turn that a page tells of has failed; another one of that number was committed.
    for value in (
        value_of(second, turn=turn, before=1),
        value_of(batch_of("third", base_offset=2), turn=turn + 1, before=2),
    ):
        journal.add([bytes(value)], len(value))
    journal.write()
    pages = PageFile(map_file(segment_path(tmp_path, 1)))
    salvage = Salvage(pages, map_file(journal_path(tmp_path, 1)))
    salvage.scan()
    batches = [bytes(salvage.batch(found)) for found in salvage.chain(1, 0)]
    assert batches == [first, second, batch_of("third", base_offset=2)]
