"""What repetitions of a fetch are compared with and answered with, byte by byte."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import ConfigChanged
from odradek.node.bus.connection_handover import FetchPosition
from odradek.node.router.context import RequestContext
from odradek.node.router.fetch_sessions import FetchSession, requested_partitions
from odradek.node.router.single_fetches import (
    SingleFetch,
    SingleFetches,
    is_for_one_partition,
    single_record_bytes,
)
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import (
    decode_request,
    decode_request_header,
    encode_response,
    encode_response_header,
)
from odradek.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.protocol.primitives import uvarint
from tests.support.controller_harness import topic_id
from tests.support.router_harness import RouterHarness
from tests.support.wire import frame_of

VERSIONS = range(5, APIS[ApiKey.FETCH].max_version + 1)
NEWEST = VERSIONS[-1]
SESSIONS_SINCE, TOPIC_IDS_SINCE = 7, 13
BEHIND_CORRELATION_ID = 8


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    harness.controller.has("t", 1, 2)
    harness.follow()
    yield harness
    harness.close()


def request_at(offset: int, *, session_id: int = 0, epoch: int = -1) -> FetchRequest:
    asked = FetchPartition(partition=1, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic="t", topic_id=topic_id(1), partitions=[asked])],
    )


def context_of(version: int, frame: memoryview) -> RequestContext:
    return RequestContext(
        api_key=ApiKey.FETCH,
        api_version=version,
        correlation_id=7,
        client_id="",
        client_host="127.0.0.1",
        client_port=1,
        local_host="127.0.0.1",
        local_port=2,
        listener_name="PLAINTEXT",
        frame=frame,
    )


def resolved(
    harness: RouterHarness, request: FetchRequest, version: int, *, addition: bytes = b""
) -> SingleFetch | None:
    """As the dispatcher would ask for it."""
    frame = memoryview(frame_of(request, version, 7)[4:] + addition)
    header = decode_request_header(frame)
    context = context_of(version, frame)
    decoded = decode_request(ApiKey.FETCH, version, frame, header.body_offset)
    assert isinstance(decoded, FetchRequest)
    assert is_for_one_partition(decoded, version)
    return SingleFetches(harness.services).resolve(decoded, context, header.body_offset)


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("session_id", [0, 99])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_template_makes_what_the_encoders_make(
    harness: RouterHarness, version: int, session_id: int, isolation_level: int
) -> None:
    if session_id and version < SESSIONS_SINCE:
        return
    first = request_at(5, session_id=session_id, epoch=3 if session_id else -1)
    first.isolation_level = isolation_level
    fetch = resolved(harness, first, version)
    assert fetch is not None
    assert fetch.fetch_offset == 5
    template = fetch.template(FetchPosition(0, 0, -1, -1))

    later = request_at(2**40 + 1, session_id=session_id, epoch=77 if session_id else -1)
    later.isolation_level = isolation_level
    expected = frame_of(later, version, 7)[4 + BEHIND_CORRELATION_ID :]
    made = bytearray(template.request)
    struct.pack_into(">q", made, template.offset_at, 2**40 + 1)
    if session_id:
        struct.pack_into(">i", made, template.epoch_at, 77)
    assert made == expected
    assert struct.unpack_from(">i", made, template.wait_at) == (500,)

    records = b"r" * 300
    data = PartitionData(
        partition_index=1,
        high_watermark=30,
        last_stable_offset=20,
        log_start_offset=10,
        aborted_transactions=[] if isolation_level else None,
        records=[records],
    )
    named = FetchableTopicResponse(partitions=[data])
    named.topic, named.topic_id = "t", topic_id(1)
    response = FetchResponse(session_id=session_id, responses=[named])
    encoded = b"".join(
        (
            encode_response_header(ApiKey.FETCH, version, 0),
            *encode_response(ApiKey.FETCH, version, response),
        )
    )
    length = uvarint(301) if template.is_flexible else struct.pack(">i", 300)
    offsets = struct.pack(">qqq", 30, 20, 10)
    assert encoded[4:] == b"".join(
        (template.head, offsets, template.middle, length, records, template.tail)
    )


def test_the_request_itself_is_not_changed(harness: RouterHarness) -> None:
    """It is to be answered yet."""
    request = request_at(5, session_id=9, epoch=3)
    frame = memoryview(frame_of(request, NEWEST, 7)[4:])
    header = decode_request_header(frame)
    fetches, context = SingleFetches(harness.services), context_of(NEWEST, frame)
    fetch = fetches.resolve(request, context, header.body_offset)
    assert fetch is not None
    fetch.template(FetchPosition(0, 0, -1, -1))
    assert request.session_epoch == 3
    assert request.topics[0].partitions[0].fetch_offset == 5
    assert len(request.topics) == 1


def test_what_is_encoded_in_another_way_is_not_taken(harness: RouterHarness) -> None:
    assert resolved(harness, request_at(0), NEWEST) is not None
    assert resolved(harness, request_at(0), NEWEST, addition=b"\0") is None


def test_a_response_has_no_more_than_the_broker_allows(harness: RouterHarness) -> None:
    fetch = resolved(harness, request_at(0), NEWEST)
    assert fetch is not None
    assert fetch.bytes_max == 1 << 20
    harness.controller.write(
        ConfigChanged(ConfigResourceType.BROKER, "", "fetch.max.bytes", "2000")
    )
    harness.follow()
    fetch = resolved(harness, request_at(0), NEWEST)
    assert fetch is not None
    assert fetch.bytes_max == 2_000


def test_a_topic_that_is_not_there_is_not_taken(harness: RouterHarness) -> None:
    unknown = request_at(0)
    unknown.topics[0].topic_id = topic_id(9)
    assert resolved(harness, unknown, NEWEST) is None
    unknown.topics[0].topic = "other"
    assert resolved(harness, unknown, TOPIC_IDS_SINCE - 1) is None


def test_a_session_of_several_partitions_is_none_of_one(harness: RouterHarness) -> None:
    fetch = resolved(harness, request_at(0), NEWEST)
    assert fetch is not None
    session = FetchSession(1, True, 1, 0)
    assert fetch.cached_in(None) is None
    assert fetch.cached_in(session) is None
    cached = fetch.cached_at(8)
    fetch.replace_in(session, cached)
    assert fetch.cached_in(session) is cached
    assert (cached.topic, cached.partition, cached.fetch_offset) == (topic_id(1), 1, 8)
    session.partitions[topic_id(1), 0] = cached
    assert fetch.cached_in(session) is None


def test_a_fetch_whose_session_has_other_partitions_is_not_single(harness: RouterHarness) -> None:
    fetches, cache = SingleFetches(harness.services), harness.services.fetch_sessions
    request = request_at(0, session_id=0, epoch=0)
    partitions = requested_partitions(request, NEWEST)
    session = cache.new_context(request, NEWEST, partitions, 0).session
    assert session is not None
    request.session_id, request.session_epoch = session.session_id, session.epoch
    assert fetches.is_single(request, NEWEST)
    session.partitions[topic_id(1), 0] = partitions[0]
    assert not fetches.is_single(request, NEWEST)
    request.session_id += 1  # nobody's
    assert fetches.is_single(request, NEWEST)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session_epoch", 0),
        ("min_bytes", 2),
        ("max_bytes", 0),
        ("max_wait_ms", 0),
        ("max_wait_ms", 30_001),
        ("replica_id", 3),
        ("topics", []),
    ],
)
def test_other_fetches_are_not_single(name: str, value: object) -> None:
    request = request_at(0)
    assert is_for_one_partition(request, NEWEST)
    setattr(request, name, value)
    assert not is_for_one_partition(request, NEWEST)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("error_code", 3),
        ("records", b""),
        ("preferred_read_replica", 2),
        ("aborted_transactions", [object()]),
    ],
)
def test_a_response_with_more_than_records_has_none(name: str, value: object) -> None:
    data = PartitionData(partition_index=1, records=[b"12", b"345"])
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=[data])])
    assert single_record_bytes(response) == 5
    setattr(data, name, value)
    assert single_record_bytes(response) == 0
