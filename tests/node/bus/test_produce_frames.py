"""Where the records are in a Produce request, against the decoder."""

import pytest

from odradek.node.bus.produce_frames import records_at
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import decode_request, decode_request_header
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.records import TRANSACTIONAL
from tests.support.stores import batch_of
from tests.support.wire import frame_of

VERSIONS = range(3, APIS[ApiKey.PRODUCE].max_version + 1)


def frame(version: int, *batches: bytes, topics: int = 1) -> bytes:
    data = [PartitionProduceData(index=0, records=memoryview(batch)) for batch in batches]
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5_000,
        topic_data=[TopicProduceData(name="t", partition_data=data)] * topics,
    )
    return frame_of(request, version, 7)[4:]


def length_at(whole: bytes, version: int) -> int:
    """Where the length of the records is, by the decoder."""
    header = decode_request_header(whole)
    request = decode_request(ApiKey.PRODUCE, version, whole, header.body_offset)
    assert isinstance(request, ProduceRequest)
    records = request.topic_data[0].partition_data[0].records
    assert records is not None
    at = whole.index(bytes(records))
    return (
        at - 4
        if version < 9
        else at - (1 if len(records) < 127 else 2 if len(records) < 16383 else 3)
    )


@pytest.mark.parametrize("size", [1, 10, 56, 57, 200, 16_300, 16_400])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_records_are_found(version: int, size: int) -> None:
    batch = batch_of(1, size=size)
    whole = frame(version, batch)
    for each in (whole, memoryview(whole)):
        found = records_at(each, length_at(whole, version), len(whole), version)
        assert found is not None
        at, length = found
        assert bytes(each[at : at + length]) == batch


@pytest.mark.parametrize("version", [7, 9, 13])
def test_other_requests_have_none(version: int) -> None:
    batch = batch_of(1)
    whole = frame(version, batch)
    at = length_at(whole, version)
    end = len(whole)
    assert records_at(whole, at, end, version)
    assert records_at(whole + b"\0", at, end + 1, version) is None
    assert records_at(whole[:-1], at, end - 1, version) is None
    assert records_at(whole, at, at + 3, version) is None
    assert (
        records_at(frame(version, batch, batch), at, len(frame(version, batch, batch)), version)
        is None
    )
    marked = frame(version, batch_of(1, attributes=TRANSACTIONAL))
    assert records_at(marked, at, len(marked), version) is None
    assert records_at(marked, at, len(marked), version, is_transactional=True)
    assert records_at(whole, at, end, version, is_transactional=True) is None
    old = bytearray(whole)
    old[whole.index(batch) + 16] = 1
    assert records_at(bytes(old), at, end, version) is None


def test_a_length_without_an_end_is_no_length() -> None:
    whole = b"\xff" * 200
    assert records_at(whole, 0, len(whole), 9) is None
