"""The walk over records: against a plain reading of the format, in pieces of any size, compiled and
not.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odradek.protocol import record_walker
from odradek.protocol.compression import Codec
from odradek.protocol.record_walker import (
    INT64_MAX,
    INT64_MIN,
    NO_KEY,
    OFFSET_NOT_CONSECUTIVE,
    RECORD_ERRORS_MAX,
    TIMESTAMP_OUT_OF_RANGE,
)
from odradek.protocol.records import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from tests.support.compiled_modules import ROOT, uncompiled
from tests.support.poison_batches import (
    BODIES,
    GOOD_BODIES,
    raw_batch,
    raw_field,
    raw_record,
    varint,
)
from tests.support.stores import NOW_MS, batch_of

UNCOMPILED = uncompiled(ROOT / "protocol" / "record_walker.py")


class Malformed(Exception):
    """What the reference raises."""


class Walk(NamedTuple):
    """The result of a walk; for malformed records only the index of the first one."""

    is_malformed: bool
    records: int
    largest_delta: int = 0
    errors: tuple[tuple[int, int], ...] = ()
    has_timestamp_error: bool = False


class Bounds(NamedTuple):
    """What a topic requires of records."""

    requires_keys: bool = False
    earliest_delta: int = INT64_MIN
    latest_delta: int = INT64_MAX
    exempt_delta: int = INT64_MIN


def walk(module: ModuleType, pieces: Iterable[bytes], count: int, bounds: Bounds) -> Walk:
    walker = module.RecordWalker(count, **bounds._asdict())
    try:
        for piece in pieces:
            walker.feed(piece)
        walker.finish()
    except module.MalformedRecordsError:
        return Walk(True, walker.index)
    return Walk(
        False,
        walker.index,
        walker.largest_delta,
        tuple(walker.errors),
        walker.has_timestamp_error,
    )


def read_varint(data: bytes, at: int, bits: int) -> tuple[int, int]:
    raw = 0
    for shift in range(0, bits + 6, 7):
        if at >= len(data):
            raise Malformed
        raw |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 128:
            break
    else:
        raise Malformed
    if raw >= 1 << bits:
        raise Malformed
    return (raw >> 1) ^ -(raw & 1), at


def reference_walk(data: bytes, count: int, bounds: Bounds) -> Walk:
    """The format, read as plainly as possible."""
    at = index = 0
    largest = INT64_MIN
    errors = []
    try:
        while at < len(data):
            if index == count:
                raise Malformed
            length, at = read_varint(data, at, 32)
            end = at + length
            if length < 6 or end > len(data):
                raise Malformed
            record = data[:end]
            delta, at = read_varint(record, at + 1, 64)
            offset_delta, at = read_varint(record, at, 32)
            key_length, at = read_varint(record, at, 32)
            value_length, at = read_varint(record, at + max(key_length, 0), 32)
            header_count, at = read_varint(record, at + max(value_length, 0), 32)
            if header_count < 0:
                raise Malformed
            for _ in range(header_count):
                name_length, at = read_varint(record, at, 32)
                if name_length < 0:
                    raise Malformed
                length, at = read_varint(record, at + name_length, 32)
                at += max(length, 0)
            if at != end:
                raise Malformed
            largest = max(largest, delta)
            if bounds.requires_keys and key_length < 0:
                errors.append((index, NO_KEY))
            elif offset_delta != index:
                errors.append((index, OFFSET_NOT_CONSECUTIVE))
            elif (
                not bounds.earliest_delta <= delta <= bounds.latest_delta
                and delta != bounds.exempt_delta
            ):
                errors.append((index, TIMESTAMP_OUT_OF_RANGE))
            index += 1
        if index != count:
            raise Malformed
    except Malformed:
        return Walk(True, index)
    has_timestamp_error = any(fault == TIMESTAMP_OUT_OF_RANGE for _, fault in errors)
    return Walk(False, index, largest, tuple(errors[:RECORD_ERRORS_MAX]), has_timestamp_error)


def cut(data: bytes, sizes: Callable[[], int]) -> list[bytes]:
    """The data in pieces of these sizes."""
    pieces = []
    at = 0
    while at < len(data):
        size = max(1, sizes())
        pieces.append(data[at : at + size])
        at += size
    return pieces


def assert_all_agree(data: bytes, count: int, bounds: Bounds, seed: int = 0) -> None:
    expected = reference_walk(data, count, bounds)
    randomness = random.Random(seed)
    for module in (record_walker, UNCOMPILED):
        for name, pieces in (
            ("whole", [data]),
            ("byte by byte", cut(data, lambda: 1)),
            ("some", cut(data, lambda: randomness.randint(1, 40))),
            ("many", cut(data, lambda: randomness.randint(1, 400))),
        ):
            assert walk(module, pieces, count, bounds) == expected, (module.__name__, name)


numbers = st.sampled_from(
    [-(2**31), -2, -1, 0, 1, 2, 63, 64, 127, 128, 8_191, 8_192, 2**31 - 1]
) | st.integers(-300, 300)
deltas = (
    numbers
    | st.sampled_from([INT64_MIN, INT64_MIN + 1, INT64_MAX])
    | st.integers(INT64_MIN, INT64_MAX)
)
small_bytes = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.binary(max_size=9), small_bytes), max_size=3)


def encoded_headers(headers: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    return varint(len(headers)) + b"".join(
        raw_field(name) + raw_field(value) for name, value in headers
    )


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    """Records, most of them in order, and the number that is claimed."""
    records = [
        raw_record(
            draw(st.just(index) | st.just(index) | numbers),
            draw(deltas),
            attributes=draw(st.integers(0, 255)),
            key=draw(small_bytes),
            value=draw(small_bytes),
            headers=encoded_headers(draw(header_lists)),
        )
        for index in range(draw(st.integers(0, 12)))
    ]
    claimed = draw(st.just(len(records)) | st.integers(0, 14))
    return b"".join(records), claimed


topic_bounds = st.builds(Bounds, st.booleans(), deltas, deltas, deltas)


@given(bodies(), topic_bounds, st.integers(0, 2**16))
def test_records_are_read_alike(body: tuple[bytes, int], bounds: Bounds, seed: int) -> None:
    assert_all_agree(*body, bounds, seed)


@given(
    bodies(),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 2**16),
)
def test_damaged_records_are_read_alike(
    body: tuple[bytes, int], changes: list[tuple[int, int]], seed: int
) -> None:
    data, count = bytearray(body[0]), body[1]
    for at, byte in changes:
        if data:
            data[at % len(data)] = byte
    assert_all_agree(bytes(data), count, Bounds(), seed)


@given(st.binary(max_size=60), st.integers(0, 5))
@example(b"\x0c" + b"\0" * 5 + b"\0", 1)
@example(b"\xff" * 30, 3)
@example(b"\x80\x80\x80\x80\x80\x80\x01", 1)
def test_garbage_is_read_alike(data: bytes, count: int) -> None:
    assert_all_agree(data, count, Bounds())


@pytest.mark.parametrize("name", BODIES)
def test_the_faults_of_poison_batches_are_found(name: str) -> None:
    body = BODIES[name]
    data = b"".join(body.records)
    assert_all_agree(data, body.record_count, Bounds())
    result = walk(record_walker, [data], body.record_count, Bounds())
    assert (result.is_malformed or bool(result.errors)) is (name not in GOOD_BODIES)


def test_what_a_key_or_a_value_has_left_may_be_left_out() -> None:
    records = [raw_record(index, key=bytes(500), value=bytes(70_000)) for index in range(5)]
    data = b"".join(records)
    walker = record_walker.RecordWalker(5)
    at = fed = 0
    while at < len(data):
        piece = data[at : at + 1_000]
        walker.feed(piece)
        fed += len(piece)
        at += len(piece) + walker.skip
        walker.skip = 0
    walker.finish()
    assert walker.index == 5
    assert fed < 5 * 3_000


def test_a_record_without_its_last_byte_is_cut() -> None:
    data = b"".join(raw_record(index, headers=b"\x02\x02h\x02v") for index in range(3))
    for size in range(len(data)):
        result = walk(record_walker, [data[:size]], 3, Bounds())
        assert result.is_malformed, size
    assert not walk(record_walker, [data], 3, Bounds()).is_malformed


def test_only_the_first_faulty_records_are_named() -> None:
    data = b"".join(raw_record(index, 5) for index in range(1_000))
    bounds = Bounds(latest_delta=4)
    result = walk(record_walker, [data], 1_000, bounds)
    assert result == reference_walk(data, 1_000, bounds)
    assert len(result.errors) == RECORD_ERRORS_MAX


HOUR_MS = 3_600_000
PLAIN = batch_of(3, size=20)
IDEMPOTENT = batch_of(2, producer_id=7, producer_epoch=0, base_sequence=5)


def is_plain(batch: bytes, *, requires_keys: bool = False, start: int = 0) -> bool:
    """What both forms of the module say."""
    arguments = (batch, start, requires_keys, NOW_MS - HOUR_MS, NOW_MS + HOUR_MS)
    answer = record_walker.is_plain_batch(*arguments)
    assert UNCOMPILED.is_plain_batch(*arguments) is answer, batch.hex()
    return bool(answer)


def test_a_plain_batch_may_have_other_bytes_before_it() -> None:
    assert is_plain(PLAIN)
    assert is_plain(b"\xee" * 16 + PLAIN, start=16)
    assert not is_plain(b"\xee" * 16 + PLAIN)


@pytest.mark.parametrize(
    "batch",
    [
        IDEMPOTENT,
        batch_of(1, key=None),
        batch_of(1, timestamp=NOW_MS - HOUR_MS),
        batch_of(1, timestamp=NOW_MS + HOUR_MS),
        batch_of(2, producer_id=7, producer_epoch=0, base_sequence=5, attributes=TRANSACTIONAL),
        *(
            raw_batch(b"".join(body.records), body.record_count, base_timestamp=NOW_MS)
            for body in GOOD_BODIES.values()
        ),
    ],
    ids=bytes.hex,
)
def test_plain_batches(batch: bytes) -> None:
    assert is_plain(batch)


@pytest.mark.parametrize(
    "batch",
    [
        *(batch_of(3, codec=codec) for codec in Codec if codec is not Codec.NONE),
        batch_of(1, timestamp=NOW_MS - HOUR_MS - 1),
        batch_of(1, timestamp=NOW_MS + HOUR_MS + 1),
        batch_of(1, timestamp=-1),
        batch_of(1, attributes=LOG_APPEND_TIME),
        batch_of(1, attributes=CONTROL),
        batch_of(1, attributes=TRANSACTIONAL),
        batch_of(1, attributes=1 << 6),
        batch_of(1, producer_id=7, producer_epoch=0, base_sequence=-1),
        batch_of(10_001, size=0),
        PLAIN[:61],
        PLAIN[:-1],
        PLAIN + b"\0",
        b"",
        raw_batch(raw_record(0), 1, base_timestamp=NOW_MS, max_timestamp=NOW_MS + 1),
        raw_batch(raw_record(0), 1, base_timestamp=NOW_MS, last_offset_delta=1),
        raw_batch(b"", 0, base_timestamp=NOW_MS),
        *(
            raw_batch(b"".join(body.records), body.record_count, base_timestamp=NOW_MS)
            for name, body in BODIES.items()
            if name not in GOOD_BODIES
        ),
    ],
    ids=bytes.hex,
)
def test_batches_that_are_not_plain(batch: bytes) -> None:
    assert not is_plain(batch)


def test_a_plain_batch_of_a_compacted_topic_has_keys() -> None:
    assert is_plain(batch_of(2), requires_keys=True)
    assert not is_plain(batch_of(2, key=None), requires_keys=True)


@given(
    st.sampled_from((PLAIN, IDEMPOTENT, batch_of(1, size=200))),
    st.lists(
        st.tuples(st.one_of(st.integers(16, 60), st.integers(61, 300)), st.integers(0, 255)),
        max_size=3,
    ),
)
def test_damaged_batches_are_read_alike(batch: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(batch)
    for at, byte in changes:
        damaged[at % len(damaged)] = byte
    is_plain(bytes(damaged))
