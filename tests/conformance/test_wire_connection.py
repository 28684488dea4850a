"""A connection: frames, headers, order of answers, ApiVersions (KIP-511), and when it is closed."""

import struct

import pytest

from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import encode_request_header
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchResponse
from odradek.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from odradek.protocol.messages.produce import ProduceRequest
from tests.conformance.dialogue import (
    FETCH,
    METADATA,
    PRODUCE,
    DialogueCluster,
    append,
    batch_of,
    fetch,
    fetch_request,
    partitions_of,
    produce_request,
    values_of,
)
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, frame_of

NO_TOPICS = MetadataRequest(topics=[])
REQUEST_BYTES_MAX = 104_857_600  # Kafka's default: socket.request.max.bytes

# Those that a broker of one node serves, and that do nothing when asked with empty hands.
HARMLESS = frozenset(APIS) & {
    *range(24),
    *(32, 33, 35, 37, 42, 43, 44, 45, 46, 47, 55, 57, 60, 61, 74, 75),
}


def raw_frame(api_key: int, version: int, body: bytes, *, client_id: bytes = b"\xff\xff") -> bytes:
    """A frame that no codec of ours would write."""
    frame = struct.pack(">hhi", api_key, version, 7) + client_id + body
    return struct.pack(">i", len(frame)) + frame


@pytest.mark.parametrize("version", range(APIS[ApiKey.API_VERSIONS].max_version + 1))
def test_every_version_of_api_versions_lists_the_same_apis(
    wire: WireClient, cluster: DialogueCluster, version: int
) -> None:
    """B.0.2: "ApiVersions answers with header v0 always"."""
    if version not in cluster.versions[ApiKey.API_VERSIONS]:
        pytest.skip(f"this broker does not serve ApiVersions {version}")
    request = ApiVersionsRequest(client_software_name="odradek", client_software_version="1.0")
    answer = wire.ask(request, version, ApiVersionsResponse)
    assert answer.error_code == ErrorCode.NONE
    listed = {api.api_key: range(api.min_version, api.max_version + 1) for api in answer.api_keys}
    assert listed == cluster.versions


def test_an_unknown_version_of_api_versions_is_refused_in_version_0(wire: WireClient) -> None:
    """B.3: "Unknown version: answer a v0 body with UNSUPPORTED_VERSION (35) and the ApiVersions
    entry itself (KIP-511)"; the connection lives on.
    """
    wire.send_raw(raw_frame(ApiKey.API_VERSIONS, 99, b"\0\0\0"))
    frame = wire.receive_frame()
    assert struct.unpack_from(">ih", frame) == (7, ErrorCode.UNSUPPORTED_VERSION)
    (count,) = struct.unpack_from(">i", frame, 6)
    entries = [struct.unpack_from(">hhh", frame, 10 + 6 * index) for index in range(count)]
    assert len(frame) == 10 + 6 * count
    (entry,) = [entry for entry in entries if entry[0] == ApiKey.API_VERSIONS]
    supported = wire.ask(ApiVersionsRequest(), 0, ApiVersionsResponse).api_keys
    assert ApiVersion(api_key=entry[0], min_version=entry[1], max_version=entry[2]) in supported


def test_produce_is_advertised_from_version_0(cluster: DialogueCluster) -> None:
    """B.1: "librdkafka breaks if ApiVersions does not list Produce from 0 (KAFKA-18659)"."""
    assert cluster.versions[ApiKey.PRODUCE].start == 0


@pytest.mark.parametrize("name", ["", "-odradek", "od radek", "odradek."])
def test_a_client_software_name_must_be_a_name(wire: WireClient, name: str) -> None:
    """B.3: "v3+ software name/version must match [...] else INVALID_REQUEST (42)"."""
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    answer = wire.ask(request, 3, ApiVersionsResponse)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_version_3_of_api_versions_leaves_out_features_that_start_at_0(wire: WireClient) -> None:
    """B.3: "v3 must omit features with min version 0 (KAFKA-17011)"."""
    request = ApiVersionsRequest(client_software_name="odradek", client_software_version="1")
    answer = wire.ask(request, 3, ApiVersionsResponse)
    assert all(feature.min_version > 0 for feature in answer.supported_features)


def test_whatever_is_advertised_is_answered(cluster: DialogueCluster) -> None:
    """B.0.9: "Advertise only what is enforced; a key whose handler gives no response makes
    clients hang".
    """
    for key in sorted(HARMLESS & cluster.versions.keys()):
        api = APIS[key]
        for version in cluster.versions[key]:
            if key == ApiKey.PRODUCE and cluster.is_kafka_4 and version < 3:
                continue  # listed for librdkafka, but refused
            request = ProduceRequest(acks=1) if key == ApiKey.PRODUCE else api.request()
            if key == ApiKey.METADATA:
                request = MetadataRequest(topics=[])
            with cluster.connect() as wire:
                assert wire.ask(request, version, api.response), f"{api.name} {version}"


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(999, 0), (-1, 0), (ApiKey.METADATA, 99), (ApiKey.PRODUCE, -1), (ApiKey.FETCH, 32_767)],
)
def test_an_unknown_api_or_version_closes_the_connection(
    wire: WireClient, api_key: int, version: int
) -> None:
    """B.0.1: "Unknown key or version (except ApiVersions): Kafka closes the connection"."""
    wire.send_raw(raw_frame(api_key, version, b"\0" * 20))
    wire.wait_until_closed()


@pytest.mark.parametrize("size", [-1, -(2**31), REQUEST_BYTES_MAX + 1, 2**31 - 1])
def test_an_impossible_size_closes_the_connection(wire: WireClient, size: int) -> None:
    """B.0.1: "Size <0 or > socket.request.max.bytes (104857600): close the connection"."""
    wire.send_raw(struct.pack(">i", size))
    wire.wait_until_closed()


@pytest.mark.parametrize("body", [b"", b"\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\0\1\x7f\xffab"])
def test_a_body_that_makes_no_sense_closes_the_connection(wire: WireClient, body: bytes) -> None:
    """A Metadata v1 request whose counts and lengths lie cannot be answered."""
    wire.send_raw(raw_frame(ApiKey.METADATA, 1, body))
    wire.wait_until_closed()


def test_a_frame_may_arrive_one_byte_at_a_time(wire: WireClient) -> None:
    frame = frame_of(NO_TOPICS, METADATA, 1)
    for index in range(len(frame)):
        wire.send_raw(frame[index : index + 1])
    assert int.from_bytes(wire.receive_frame()[:4]) == 1


def test_many_frames_may_arrive_in_one_piece_and_are_answered_in_order(wire: WireClient) -> None:
    """B.0.3: "Responses go out in request order per connection; a client may pipeline"."""
    wire.send_raw(b"".join(frame_of(NO_TOPICS, METADATA, index) for index in range(200)))
    answered = [int.from_bytes(wire.receive_frame()[:4]) for _ in range(200)]
    assert answered == list(range(200))


def test_an_answer_waits_for_the_one_before_it(wire: WireClient, topic: str) -> None:
    """B.0.3: a Fetch that waits for data holds back the Metadata that was asked after it."""
    wire.post(fetch_request(topic, {0: 0}, max_wait_ms=300), FETCH)
    wire.post(NO_TOPICS, METADATA)
    assert partitions_of(wire.receive(FetchResponse))[0].error_code == ErrorCode.NONE
    assert wire.receive(MetadataResponse).topics == []


def test_produce_without_acks_has_no_answer(wire: WireClient, topic: str) -> None:
    """B.0.3: "acks=0 produce has no response at all"."""
    request = produce_request(topic, {0: batch_of(b"unheard")}, acks=0)
    wire.post(request, PRODUCE, is_answered=False)
    wire.ask(NO_TOPICS, METADATA, MetadataResponse)
    wait_until(lambda: values_of(fetch(wire, topic, 0)) == [b"unheard"], what="the record is there")


def test_pipelined_batches_of_one_connection_keep_their_order(wire: WireClient, topic: str) -> None:
    """B.0.3, for the log: what was sent first has the lower offset, answered or not."""
    for number in range(50):
        request = produce_request(topic, {0: batch_of(b"%d" % number)}, acks=0)
        wire.post(request, PRODUCE, is_answered=False)
    assert append(wire, topic, b"last") == 50
    assert values_of(fetch(wire, topic, 0)) == [b"%d" % number for number in range(50)] + [b"last"]


def test_unknown_tagged_fields_are_skipped(wire: WireClient) -> None:
    """B.0.4: "unknown tags in requests must be skipped", in the header as in the body."""
    # Header: one tag (number 9, two bytes). Metadata 12 of no topics, no creation; body: two tags.
    header = b"\x01\x09\x02ab"
    body = b"\x01\x00\x00" + b"\x02\x07\x01x\x90\x4e\x03yyy"
    wire.send_raw(raw_frame(ApiKey.METADATA, 12, header + body))
    assert int.from_bytes(wire.receive_frame()[:4]) == 7


@pytest.mark.parametrize("client_id", [None, "", "a" * 1000, "größe"])
def test_any_client_id_will_do(wire: WireClient, client_id: str | None) -> None:
    """B.0.2: "client_id stays a NULLABLE_STRING with int16 length even in v2"."""
    for version in (1, 12):
        wire.send_raw(frame_of(NO_TOPICS, version, 3, client_id))
        assert int.from_bytes(wire.receive_frame()[:4]) == 3


def test_bytes_behind_the_body_are_ignored(wire: WireClient) -> None:
    """Kafka's brokers read what the schema says and no further; some clients pad."""
    header = encode_request_header(ApiKey.API_VERSIONS, 0, 5, "padding")
    wire.send_raw(struct.pack(">i", len(header) + 9) + header + b"\0" * 9)
    assert int.from_bytes(wire.receive_frame()[:4]) == 5
