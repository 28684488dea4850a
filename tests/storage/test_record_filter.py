"""Kafka's rules of log compaction, one by one and against a simple model."""

import random
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest

from odradek.protocol.compression import Codec
from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.record_spans import delete_horizon_of
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch, iter_records, read_header
from odradek.storage.producer_state import BatchMetadata, ProducerStateEntry
from odradek.storage.record_filter import OffsetMap, RecordFilter, short_key
from odradek.storage.transactions import AbortedTransactionRow

NOW = 1_000_000
RETENTION = 500


def batch_of(
    base_offset: int,
    *pairs: tuple[str | None, str | None],
    producer_id: int = -1,
    is_transactional: bool = False,
    codec: Codec = Codec.NONE,
) -> bytes:
    records = [
        Record(
            base_offset + at,
            100 + at,
            None if key is None else key.encode(),
            None if value is None else value.encode(),
        )
        for at, (key, value) in enumerate(pairs)
    ]
    return build_batch(
        records,
        base_offset=base_offset,
        attributes=TRANSACTIONAL if is_transactional else 0,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        codec=codec,
    )


def marker(base_offset: int, type_: ControlType, *, producer_id: int) -> bytes:
    return build_end_transaction_batch(
        EndTransactionMarker(type_, 0),
        timestamp_ms=100,
        producer_id=producer_id,
        producer_epoch=0,
        base_offset=base_offset,
    )


def drain(slices: Iterator[None]) -> None:
    """Run all slices."""
    for _ in slices:
        pass


def result_of(slices: "Generator[None, None, memoryview | bytes | None]") -> bytes | None:
    """Run all slices; the result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return None if end.value is None else bytes(end.value)


def clean(
    batches: Iterable[bytes],
    *,
    aborted: Iterable[AbortedTransactionRow] = (),
    producers: dict[int, ProducerStateEntry] | None = None,
    end_offset: int = 10_000,
    now_ms: int = NOW,
    dirty_from: int = 0,
    kept_rows: list[AbortedTransactionRow] | None = None,
) -> list[bytes]:
    """A pass over `batches`, of which those from `dirty_from` on are dirty."""
    all_batches = list(batches)
    rows = list(aborted)
    last_offsets = OffsetMap(rows, keys_max=1_000, scratch_path=Path("unused"))
    for batch in all_batches:
        if read_header(batch).base_offset >= dirty_from:
            drain(last_offsets.note(memoryview(batch), read_header(batch)))
    thinning = RecordFilter(
        last_offsets,
        rows,
        producers or {},
        end_offset=end_offset,
        now_ms=now_ms,
        delete_retention_ms=RETENTION,
    )
    thinned = [
        result_of(thinning.filter_batch(memoryview(batch), read_header(batch)))
        for batch in all_batches
    ]
    last_offsets.close()
    if kept_rows is not None:
        kept_rows += thinning.transactions.kept
    return [bytes(batch) for batch in thinned if batch is not None]


def pairs_of(batches: Iterable[bytes]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for batch in batches for r in iter_records(batch)]


def test_the_last_value_of_each_key_keeps_its_offset() -> None:
    batches = [
        batch_of(0, ("a", "1"), ("b", "1"), ("a", "2")),
        batch_of(3, ("c", "1")),
        batch_of(4, ("b", "2"), ("d", "1")),
    ]
    assert pairs_of(clean(batches)) == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
        (5, b"d", b"1"),
    ]


def test_a_batch_that_keeps_all_records_is_not_changed() -> None:
    batches = [batch_of(0, ("a", "1"), ("b", "1"), codec=Codec.GZIP)]
    assert clean(batches) == batches


def test_a_batch_that_loses_records_keeps_its_offsets() -> None:
    (thinned,) = clean([batch_of(7, ("a", "1"), ("b", "1"), ("a", "2"), ("b", "2"), ("c", "1"))])
    header = read_header(thinned)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (7, 4, 3)


def test_a_record_without_a_key_is_removed() -> None:
    assert pairs_of(clean([batch_of(0, (None, "x"), ("a", "1"))])) == [(1, b"a", b"1")]


def test_a_tombstone_is_removed_after_its_delete_horizon() -> None:
    batches = [batch_of(0, ("a", "1")), batch_of(1, ("a", None), ("b", "1"))]
    first = clean(batches)
    assert pairs_of(first) == [(1, b"a", None), (2, b"b", b"1")]
    assert delete_horizon_of(read_header(first[0])) == NOW + RETENTION
    before = clean(first, now_ms=NOW + RETENTION - 1)
    assert before == first
    after = clean(first, now_ms=NOW + RETENTION)
    assert pairs_of(after) == [(2, b"b", b"1")]


def test_an_outdated_tombstone_is_removed_at_once() -> None:
    batches = [batch_of(0, ("a", None)), batch_of(1, ("a", "1"))]
    assert pairs_of(clean(batches)) == [(1, b"a", b"1")]


def test_the_batch_at_the_end_of_the_range_is_kept_empty() -> None:
    batches = [batch_of(0, ("a", "1")), batch_of(1, (None, "x"), (None, "y"))]
    cleaned = clean(batches, end_offset=3)
    header = read_header(cleaned[-1])
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (1, 1, 0)
    # With more log behind it nobody needs it any more.
    assert clean(cleaned, end_offset=9) == cleaned[:1]


def test_the_last_batch_of_an_active_producer_is_kept_empty() -> None:
    batches = [
        batch_of(0, ("a", "1"), producer_id=5),
        batch_of(1, ("a", "2"), producer_id=5),
        batch_of(2, ("a", "3"), producer_id=6),
    ]
    producers = {5: ProducerStateEntry(0, -1, 0, -1, (BatchMetadata(0, 1, 0, 0),))}
    cleaned = clean(batches, producers=producers)
    assert pairs_of(cleaned) == [(2, b"a", b"3")]
    header = read_header(cleaned[0])
    assert (header.base_offset, header.producer_id, header.base_sequence) == (1, 5, 0)
    assert clean(cleaned, producers=producers) == cleaned
    assert clean(cleaned) == cleaned[1:]


def test_aborted_records_are_removed_and_outdate_nothing() -> None:
    row = AbortedTransactionRow(5, 1, 2, 3)
    batches = [
        batch_of(0, ("a", "1")),
        batch_of(1, ("a", "aborted"), producer_id=5, is_transactional=True),
        marker(2, ControlType.ABORT, producer_id=5),
        batch_of(3, ("b", "1"), producer_id=5, is_transactional=True),
        marker(4, ControlType.COMMIT, producer_id=5),
    ]
    kept: list[AbortedTransactionRow] = []
    cleaned = clean(batches, aborted=[row], kept_rows=kept)
    assert cleaned == [batches[0], *batches[2:]]
    assert kept == [row], "its marker is still there, and a reader may still hold its records"


def test_an_abort_marker_is_removed_after_its_records_and_a_delete_horizon() -> None:
    row = AbortedTransactionRow(5, 0, 1, 2)
    batches = [
        batch_of(0, ("a", "aborted"), producer_id=5, is_transactional=True),
        marker(1, ControlType.ABORT, producer_id=5),
        batch_of(2, ("b", "1"), producer_id=5, is_transactional=True),
        marker(3, ControlType.COMMIT, producer_id=5),
    ]
    first = clean(batches, aborted=[row])
    assert first == batches[1:]
    kept: list[AbortedTransactionRow] = []
    second = clean(first, aborted=[row], kept_rows=kept)
    assert kept == [], "without the row a reader does not wait for a marker that will go"
    assert delete_horizon_of(read_header(second[0])) == NOW + RETENTION
    third = clean(second, now_ms=NOW + RETENTION)
    assert third == batches[2:]


def test_a_transaction_whose_marker_is_after_the_range_is_aborted() -> None:
    batches = [
        batch_of(0, ("a", "aborted"), producer_id=5, is_transactional=True),
        batch_of(1, ("a", "1")),
    ]
    assert clean(batches, aborted=[AbortedTransactionRow(5, 0, 77, 78)]) == batches[1:]


def test_a_commit_marker_is_kept_as_long_as_its_records() -> None:
    batches = [
        batch_of(0, ("a", "1"), producer_id=5, is_transactional=True),
        marker(1, ControlType.COMMIT, producer_id=5),
        batch_of(2, ("b", "1")),
    ]
    assert clean(batches) == batches
    outdated = [*batches, batch_of(3, ("a", "2"))]
    first = clean(outdated)
    assert first == outdated[1:], "its records were met in this pass"
    second = clean(first)
    assert delete_horizon_of(read_header(second[0])) == NOW + RETENTION
    assert clean(second, now_ms=NOW + RETENTION) == outdated[2:]


def test_the_emptied_marker_of_a_producer_without_batches_is_kept() -> None:
    batches = [
        marker(0, ControlType.COMMIT, producer_id=5),
        batch_of(1, ("b", "1")),
    ]
    producers = {5: ProducerStateEntry(0, -1, 0, -1, ())}
    first = clean(batches, producers=producers)
    second = clean(first, producers=producers, now_ms=NOW + RETENTION)
    assert read_header(second[0]).record_count == 0
    assert clean(second, producers=producers) == second
    assert clean(second) == batches[1:]


def test_clean_records_are_outdated_by_dirty_ones_only() -> None:
    batches = [batch_of(0, ("a", "1")), batch_of(1, ("b", "1")), batch_of(2, ("a", "2"))]
    assert clean(batches, dirty_from=1) == batches[1:]


def test_long_keys_are_distinguished() -> None:
    assert short_key(b"k" * 16) == b"k" * 16
    assert len(short_key(b"k" * 17)) == 17
    batches = [batch_of(0, ("k" * 999 + "1", "1"), ("k" * 999 + "2", "1"), ("k" * 999 + "1", "2"))]
    assert [offset for offset, _, _ in pairs_of(clean(batches))] == [1, 2]


def random_log(dice: random.Random) -> Iterator[tuple[bytes, AbortedTransactionRow | None]]:
    """Batches of plain and transactional producers; with a marker that aborts comes its row."""
    offset = 0
    open_since: dict[int, int] = {}
    for _ in range(dice.randint(5, 60)):
        producer_id = dice.randrange(4)
        if producer_id in open_since and dice.random() < 0.4:
            first = open_since.pop(producer_id)
            type_ = dice.choice([ControlType.ABORT, ControlType.COMMIT])
            row = AbortedTransactionRow(producer_id, first, offset, offset + 1)
            yield (
                marker(offset, type_, producer_id=producer_id),
                row if type_ is ControlType.ABORT else None,
            )
            offset += 1
            continue
        count = dice.randint(1, 6)
        pairs = [
            (
                None if dice.random() < 0.05 else f"key{dice.randrange(12)}" * dice.choice([1, 5]),
                None if dice.random() < 0.2 else f"value{offset + at}",
            )
            for at in range(count)
        ]
        is_transactional = producer_id >= 2
        if is_transactional:
            open_since.setdefault(producer_id, offset)
        codec = dice.choice(list(Codec))
        yield (
            batch_of(
                offset,
                *pairs,
                producer_id=producer_id,
                is_transactional=is_transactional,
                codec=codec,
            ),
            None,
        )
        offset += count + dice.choice([0, 0, 3])
    for producer_id in list(open_since):
        yield marker(offset, ControlType.COMMIT, producer_id=producer_id), None
        offset += 1


def visible(
    batches: Iterable[bytes], aborted: Iterable[AbortedTransactionRow]
) -> list[tuple[int, bytes | None, bytes | None]]:
    """The records for a read_committed consumer, by brute force."""
    rows = list(aborted)
    seen = []
    for batch in batches:
        header = read_header(batch)
        if header.attributes & 0x20:
            continue
        if header.attributes & TRANSACTIONAL and any(
            row.producer_id == header.producer_id
            and row.first_offset <= header.base_offset <= row.last_offset
            for row in rows
        ):
            continue
        seen += [(r.offset, r.key, r.value) for r in iter_records(batch)]
    return seen


@pytest.mark.parametrize("seed", range(200))
def test_any_log_compacts_to_the_last_value_of_each_key(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    log = list(random_log(dice))
    batches = [batch for batch, _ in log]
    aborted = [row for _, row in log if row is not None]
    before = [record for record in visible(batches, aborted) if record[1] is not None]
    expected = {key: (offset, value) for offset, key, value in before}
    now_ms = NOW
    dirty_from = 0
    for _ in range(4):
        end_offset = 10_000
        rows: list[AbortedTransactionRow] = []
        last_offsets = OffsetMap(
            aborted, keys_max=dice.choice([3, 1_000]), scratch_path=tmp_path / "scratch"
        )
        for batch in batches:
            if read_header(batch).base_offset >= dirty_from:
                drain(last_offsets.note(memoryview(batch), read_header(batch)))
        thinning = RecordFilter(
            last_offsets,
            aborted,
            {},
            end_offset=end_offset,
            now_ms=now_ms,
            delete_retention_ms=RETENTION,
        )
        thinned = [
            result_of(thinning.filter_batch(memoryview(batch), read_header(batch)))
            for batch in batches
        ]
        last_offsets.close()
        rows = thinning.transactions.kept
        batches = [bytes(batch) for batch in thinned if batch is not None]
        aborted = rows
        dirty_from = 10_000
        after = visible(batches, aborted)
        offsets = [offset for offset, _, _ in after]
        assert offsets == sorted(offsets)
        found = {key: (offset, value) for offset, key, value in after}
        assert len(found) == len(after), "a key twice"
        tombstones = {key for key, (_, value) in expected.items() if value is None}
        for key in found.keys() | expected.keys():
            if key in tombstones and now_ms >= NOW + RETENTION:
                continue  # may be gone
            assert found.get(key) == expected.get(key)
        now_ms += RETENTION
    assert not any(value is None for _, value in found.values()), "tombstones went in the end"


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_of_very_many_records_is_filtered_in_slices(codec: Codec, tmp_path: Path) -> None:
    """The worker's requests wait no longer than a slice, and the batch is not in memory at once."""
    count = 30_000
    records = [Record(i, NOW, b"%d" % (i % 20_000), b"v" if i % 3 else None) for i in range(count)]
    batch = memoryview(build_batch(records, codec=codec))
    header = read_header(batch)
    last_offsets = OffsetMap((), keys_max=100_000, scratch_path=tmp_path / "scratch")
    assert len(list(last_offsets.note(batch, header))) >= 14
    thinning = RecordFilter(
        last_offsets, (), {}, end_offset=count, now_ms=NOW, delete_retention_ms=RETENTION
    )
    slices = thinning.filter_batch(batch, header)
    for _ in range(25):
        next(slices)
    thinned = result_of(slices)
    assert thinned is not None
    kept = list(iter_records(thinned))
    assert [record.offset for record in kept] == list(range(10_000, count))
    assert [record.timestamp for record in kept] == [NOW] * 20_000
    assert delete_horizon_of(read_header(thinned)) == NOW + RETENTION


def test_a_value_larger_than_a_piece_is_filtered(tmp_path: Path) -> None:
    records = [Record(i, NOW, b"%d" % (i % 2), bytes(200_000)) for i in range(3)]
    batch = memoryview(build_batch(records, codec=Codec.ZSTD))
    last_offsets = OffsetMap((), keys_max=1_000, scratch_path=tmp_path / "scratch")
    drain(last_offsets.note(batch, read_header(batch)))
    thinning = RecordFilter(
        last_offsets, (), {}, end_offset=3, now_ms=NOW, delete_retention_ms=RETENTION
    )
    thinned = result_of(thinning.filter_batch(batch, read_header(batch)))
    assert thinned is not None
    assert list(iter_records(thinned)) == records[1:]
