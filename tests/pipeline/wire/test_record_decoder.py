"""The decoder against the broker's reading of records, compiled and not, and against poison."""

from types import ModuleType
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.pipeline.wire import record_decoder
from odradek.pipeline.wire.record_decoder import RecordDecoder
from odradek.protocol.errors import ProtocolError
from odradek.protocol.records import HEADER_BYTES, Record, build_batch, iter_records, read_header
from tests.support.compiled_modules import ROOT, uncompiled
from tests.support.poison_batches import BODIES, raw_batch, raw_record

UNCOMPILED = uncompiled(ROOT / "pipeline" / "wire" / "record_decoder.py")
MODULES = pytest.mark.parametrize(
    "module", [record_decoder, UNCOMPILED], ids=["installed", "plain"]
)
END = 2**62

BYTES = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=120, max_size=200))
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))))
CONTENTS = st.lists(
    st.tuples(st.integers(1, 300), st.integers(0, 2**40), BYTES, BYTES, st.just(()) | HEADERS),
    max_size=20,
)
BASE = 1_000_000
Header: TypeAlias = tuple[str, bytes | None]
Contents: TypeAlias = list[tuple[int, int, bytes | None, bytes | None, list[Header]]]


def records_of(contents: Contents, base: int = BASE) -> list[Record]:
    found = []
    offset = base - 1
    for step, timestamp, key, value, headers in contents:
        offset += step
        found.append(Record(offset, timestamp, key, value, tuple(headers)))
    return found


def bytes_at(data: bytes, span: int) -> bytes:
    return data[span & 0x7FFFFFFF : span >> 32]


def decoded(decoder: RecordDecoder, data: bytes) -> list[Record]:
    """What was collected, record by record."""
    offsets: list[int] = []
    runs = [*decoder.offset_runs, decoder.rows]
    for at in range(0, len(runs) - 1, 2):
        rows = runs[at + 2] - runs[at]
        offsets += range(runs[at + 1], runs[at + 1] + rows)
    header_start = 0
    found = []
    for row in range(decoder.rows):
        has_key = decoder.keys and row not in decoder.null_keys
        key = bytes_at(data, decoder.keys[row]) if has_key else None
        has_value = row not in decoder.null_values
        value = bytes_at(data, decoder.values[row]) if has_value else None
        header_end = decoder.header_ends[row] if decoder.header_ends else 0
        headers = tuple(
            (
                bytes_at(data, decoder.header_keys[header]).decode(errors="replace"),
                None
                if header in decoder.null_header_values
                else bytes_at(data, decoder.header_values[header]),
            )
            for header in range(header_start, header_end)
        )
        header_start = header_end
        found.append(Record(offsets[row], decoder.timestamps[row], key, value, headers))
    return found


def decode(
    module: ModuleType,
    batches: list[bytes],
    *,
    first: int = 0,
    end: int = END,
    with_headers: bool = True,
    has_timestamps: bool = True,
) -> tuple[RecordDecoder, bytes]:
    """All of them with one decoder, each behind the one before."""
    decoder = module.RecordDecoder(with_headers)
    shift = 0
    for batch in batches:
        header = read_header(batch)
        decoder.decode(
            batch,
            HEADER_BYTES,
            len(batch),
            shift,
            header.record_count,
            header.base_offset,
            header.base_timestamp,
            has_timestamps,
            first,
            end,
        )
        shift += len(batch)
    return decoder, b"".join(batches)


@MODULES
@given(st.lists(CONTENTS, max_size=4))
def test_what_was_written_is_read(module: ModuleType, contents: list[Contents]) -> None:
    bases = range(BASE, 2**40, BASE)
    batches = [records_of(each, base) for each, base in zip(contents, bases, strict=False)]
    written = [
        build_batch(batch, base_offset=base) for batch, base in zip(batches, bases, strict=False)
    ]
    assert decoded(*decode(module, written)) == [record for batch in batches for record in batch]


@MODULES
@given(CONTENTS, st.integers(BASE, BASE + 1000), st.integers(BASE, BASE + 1000))
def test_only_the_offsets_that_are_wanted(
    module: ModuleType, contents: Contents, first: int, end: int
) -> None:
    records = records_of(contents)
    batch = build_batch(records, base_offset=BASE)
    found = decoded(*decode(module, [batch], first=first, end=end))
    assert found == [record for record in records if first <= record.offset < end]


@MODULES
def test_without_headers_they_are_skipped(module: ModuleType) -> None:
    batch = build_batch([Record(0, 1, b"k", b"v", (("a", b"b"),)), Record(1, 1, None, b"w", ())])
    decoder, data = decode(module, [batch], with_headers=False)
    assert decoded(decoder, data) == [Record(0, 1, b"k", b"v", ()), Record(1, 1, None, b"w", ())]
    assert decoder.header_keys == []


@MODULES
def test_the_time_of_the_broker_is_that_of_all_records(module: ModuleType) -> None:
    batch = build_batch([Record(0, 50, None, b"v", ()), Record(1, 70, None, b"v", ())])
    decoder, _ = decode(module, [batch], has_timestamps=False)
    assert decoder.timestamps == [50, 50]


@MODULES
def test_keys_are_noted_from_the_first_one_on(module: ModuleType) -> None:
    without = build_batch([Record(0, 0, None, b"v", ()), Record(1, 0, None, b"v", ())])
    decoder, _ = decode(module, [without])
    assert (decoder.keys, decoder.null_keys) == ([], [])
    mixed = build_batch([Record(2, 0, b"k", b"v", ()), Record(3, 0, None, b"v", ())], base_offset=2)
    decoder, data = decode(module, [without, mixed])
    assert [record.key for record in decoded(decoder, data)] == [None, None, b"k", None]


def is_good(batch: bytes) -> bool:
    """Whether the broker's own reader can read it, and offsets ascend."""
    try:
        offsets = [record.offset for record in iter_records(batch)]
    except ProtocolError:
        return False
    return offsets == sorted({*offsets} - {-1}) and len(offsets) > 0


@MODULES
@pytest.mark.parametrize("name", BODIES)
def test_poison_is_refused(module: ModuleType, name: str) -> None:
    body = BODIES[name]
    batch = raw_batch(b"".join(body.records), body.record_count, base_timestamp=0)
    try:
        decoder, data = decode(module, [batch], first=-1)
    except module.RecordsCut:
        assert not is_good(batch)
    else:
        assert len(decoded(decoder, data)) == body.record_count


@MODULES
@given(st.data())
def test_any_bytes_are_refused_or_give_spans_within_them(
    module: ModuleType, data: st.DataObject
) -> None:
    good = b"".join(raw_record(index, headers=b"\x02\x02h\x02v") for index in range(4))
    body = bytearray(good)
    for at in data.draw(st.lists(st.integers(0, len(good) - 1), max_size=4)):
        body[at] = data.draw(st.integers(0, 255))
    batch = raw_batch(bytes(body), 4, base_timestamp=0)
    try:
        decoder, read = decode(module, [batch])
    except module.RecordsCut:
        return
    last = HEADER_BYTES
    spans = [*decoder.values, *decoder.header_keys, *decoder.header_values]
    for span in (*spans, *(key for key in decoder.keys if key)):
        assert HEADER_BYTES <= span & 0x7FFFFFFF <= span >> 32 <= len(read)
    for span in decoder.values:
        assert last <= span & 0x7FFFFFFF
        last = span >> 32


def test_the_installed_module_is_compiled_if_there_is_a_compiled_one() -> None:
    built = list((ROOT / "pipeline" / "wire").glob("record_decoder.*.so"))
    assert bool(built) == record_decoder.IS_COMPILED
