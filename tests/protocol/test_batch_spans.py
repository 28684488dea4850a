"""The positions of batches in bytes that were read."""

import pytest

from odradek.protocol.batch_spans import spans_of
from odradek.protocol.errors import ProtocolError
from odradek.protocol.records import CONTROL, TRANSACTIONAL, Record, build_batch, iter_batches


def batch(start: int, count: int, **options: int) -> bytes:
    records = [Record(start + index, 0, None, b"v" * 9) for index in range(count)]
    return build_batch(records, base_offset=start, **options)  # type: ignore[arg-type]  # numbers


def test_spans_say_what_the_headers_say() -> None:
    view = b"".join(
        (batch(5, 3), batch(8, 1, producer_id=7, producer_epoch=0, attributes=TRANSACTIONAL))
    )
    spans = spans_of(view)
    assert [(span.start, span.end) for span in spans] == [(5, 8), (8, 9)]
    assert [(span.at, span.size) for span in spans] == [
        (at, header.batch_length + 12) for at, header in iter_batches(view)
    ]
    assert [span.producer_id for span in spans] == [-1, 7]
    assert [span.is_transactional for span in spans] == [False, True]


def test_a_marker_is_known() -> None:
    [span] = spans_of(batch(0, 1, attributes=CONTROL | TRANSACTIONAL))
    assert span.is_control


def test_nothing_has_no_spans() -> None:
    assert spans_of(b"") == []


@pytest.mark.parametrize("cut", [1, 30, 62])
def test_a_cut_batch_is_malformed(cut: int) -> None:
    view = batch(0, 1) * 2
    with pytest.raises(ProtocolError):
        spans_of(memoryview(view)[:-cut])
