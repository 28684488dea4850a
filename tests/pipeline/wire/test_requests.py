"""Requests and answers against the broker's codec, in every version that is here."""

from collections.abc import Iterator
from random import Random

import pytest

from odradek.pipeline.wire import requests
from odradek.pipeline.wire.primitives import MessageReader, topic_id_bytes, topic_id_text
from odradek.pipeline.wire.requests import (
    API_VERSIONS,
    FETCH,
    FETCH_WITH_TOPIC_IDS,
    LIST_OFFSETS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    BrokerAddress,
    FetchQuestion,
    OffsetQuestion,
    OffsetReply,
    WireApi,
)
from odradek.protocol.apis import APIS
from odradek.protocol.codec import decode_request, encode_response
from odradek.protocol.messages.fetch import FetchRequest, FetchResponse
from odradek.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from odradek.protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from odradek.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.support.message_samples import random_message

TOPIC_ID = "Er_Yqdl4RP6bBj98ZChnPA"
SEEDS = 30


def versions(api: WireApi) -> list[int]:
    return list(range(api.oldest, api.newest + 1))


def answers(api: WireApi, response: type, version: int) -> Iterator[tuple[object, MessageReader]]:
    """Random answers, and what a broker sends of them."""
    for seed in range(SEEDS):
        message = random_message(Random(seed), response, version)
        body = b"".join(map(bytes, encode_response(api.key, version, message)))
        yield message, MessageReader(body, is_flexible=api.is_flexible(version))


@pytest.mark.parametrize(
    "api", [FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE]
)
def test_numbers_and_flexible_versions_are_those_of_kafka(api: WireApi) -> None:
    known = APIS[api.key]
    for version in versions(api):
        assert api.is_flexible(version) == (known.request_header_version(version) >= 2)


@pytest.mark.parametrize("version", versions(METADATA))
def test_metadata(version: int) -> None:
    for names in (None, [], ["orders", "zażółć"]):
        sent = decode_request(METADATA.key, version, requests.encode_metadata(version, names))
        assert isinstance(sent, MetadataRequest)
        assert (None if sent.topics is None else [topic.name for topic in sent.topics]) == names
        assert not sent.allow_auto_topic_creation
    for message, body in answers(METADATA, MetadataResponse, version):
        assert isinstance(message, MetadataResponse)
        found = requests.decode_metadata(version, body)
        assert body.at == len(body.data)
        assert found.brokers == {
            node.node_id: BrokerAddress(node.host, node.port) for node in message.brokers
        }
        for topic, expected in zip(found.topics, message.topics, strict=True):
            assert topic.error == expected.error_code
            assert topic.name == (expected.name or "")
            assert topic.is_internal == expected.is_internal
            if version >= requests.METADATA_WITH_TOPIC_IDS:
                assert topic_id_bytes(topic.topic_id) == bytes(expected.topic_id)
            for partition, wanted in zip(topic.partitions, expected.partitions, strict=True):
                assert partition.partition == wanted.partition_index
                assert (partition.error, partition.leader) == (wanted.error_code, wanted.leader_id)
                assert partition.leader_epoch == wanted.leader_epoch


@pytest.mark.parametrize("version", versions(LIST_OFFSETS))
def test_list_offsets(version: int) -> None:
    questions = [
        OffsetQuestion("a", 0, 7, -2),
        OffsetQuestion("b", 1, 8, 1_700_000_000_000),
        OffsetQuestion("a", 2, 9, -1),
    ]
    encoded = requests.encode_list_offsets(version, requests.READ_COMMITTED, questions)
    sent = decode_request(LIST_OFFSETS.key, version, encoded)
    assert isinstance(sent, ListOffsetsRequest)
    assert (sent.replica_id, sent.isolation_level) == (-1, 1)
    assert [topic.name for topic in sent.topics] == ["a", "b"]
    asked = {
        OffsetQuestion(
            topic.name,
            partition.partition_index,
            partition.current_leader_epoch,
            partition.timestamp,
        )
        for topic in sent.topics
        for partition in topic.partitions
    }
    assert asked == {
        question if version >= 4 else question._replace(leader_epoch=-1) for question in questions
    }
    for message, body in answers(LIST_OFFSETS, ListOffsetsResponse, version):
        assert isinstance(message, ListOffsetsResponse)
        assert requests.decode_list_offsets(version, body) == [
            OffsetReply(
                topic.name,
                partition.partition_index,
                partition.error_code,
                partition.offset,
                partition.timestamp,
            )
            for topic in message.topics
            for partition in topic.partitions
        ]
        assert body.at == len(body.data)


@pytest.mark.parametrize("version", versions(FETCH))
def test_fetch(version: int) -> None:
    question = FetchQuestion(
        topic="orders",
        topic_id=TOPIC_ID,
        partition=3,
        leader_epoch=5,
        offset=2**40,
        isolation=1,
        max_bytes=1000,
        max_wait_ms=50,
        rack="r1",
    )
    sent = decode_request(FETCH.key, version, requests.encode_fetch(version, question))
    assert isinstance(sent, FetchRequest)
    assert (sent.max_wait_ms, sent.min_bytes, sent.max_bytes) == (50, 1, 1000)
    assert (sent.isolation_level, sent.session_id, sent.session_epoch) == (1, 0, -1)
    assert (sent.replica_id, sent.replica_state) == (-1, None)
    assert sent.rack_id == ("r1" if version >= 11 else "")
    (topic,) = sent.topics
    if version >= FETCH_WITH_TOPIC_IDS:
        assert topic_id_text(bytes(topic.topic_id)) == TOPIC_ID
    else:
        assert topic.topic == "orders"
    (partition,) = topic.partitions
    assert (partition.partition, partition.fetch_offset) == (3, 2**40)
    assert partition.current_leader_epoch == (5 if version >= 9 else -1)
    assert (partition.last_fetched_epoch, partition.log_start_offset) == (-1, -1)
    assert partition.partition_max_bytes == 1000
    for message, body in answers(FETCH, FetchResponse, version):
        assert isinstance(message, FetchResponse)
        found = requests.decode_fetch(version, body)
        assert body.at == len(body.data)
        last = [part for each in message.responses for part in each.partitions][-1:]
        for expected in last:
            assert found.error == (message.error_code or expected.error_code)
            assert found.high_watermark == expected.high_watermark
            assert found.last_stable_offset == expected.last_stable_offset
            assert found.log_start_offset == expected.log_start_offset
            assert found.preferred_replica == expected.preferred_read_replica
            assert list(found.aborted) == [
                (each.producer_id, each.first_offset)
                for each in expected.aborted_transactions or []
            ]
            records = bytes(expected.records or b"")  # type: ignore[arg-type]  # one buffer here
            assert found.data[found.records_at : found.records_end] == records
        if not last:
            assert (found.error, found.records_end) == (message.error_code, 0)


@pytest.mark.parametrize("version", [0, 3])
def test_api_versions(version: int) -> None:
    sent = decode_request(API_VERSIONS.key, version, requests.encode_api_versions(version, "1.2"))
    assert isinstance(sent, ApiVersionsRequest)
    if version >= 3:
        assert sent.client_software_name == "odradek-pipeline"
        assert sent.client_software_version == "1.2"
    for message, body in answers(API_VERSIONS, ApiVersionsResponse, version):
        assert isinstance(message, ApiVersionsResponse)
        assert requests.decode_api_versions(body) == (
            message.error_code,
            {each.api_key: (each.min_version, each.max_version) for each in message.api_keys},
        )


@pytest.mark.parametrize("version", versions(SASL_AUTHENTICATE))
def test_sasl(version: int) -> None:
    handshake = decode_request(SASL_HANDSHAKE.key, 1, requests.encode_sasl_handshake("PLAIN"))
    assert handshake == SaslHandshakeRequest(mechanism="PLAIN")
    for message, body in answers(SASL_HANDSHAKE, SaslHandshakeResponse, 1):
        assert isinstance(message, SaslHandshakeResponse)
        assert requests.decode_sasl_handshake(body) == (message.error_code, message.mechanisms)
    encoded = requests.encode_sasl_authenticate(version, b"\0a\0b")
    assert decode_request(SASL_AUTHENTICATE.key, version, encoded) == SaslAuthenticateRequest(
        auth_bytes=b"\0a\0b"
    )
    for message, body in answers(SASL_AUTHENTICATE, SaslAuthenticateResponse, version):
        assert isinstance(message, SaslAuthenticateResponse)
        assert requests.decode_sasl_authenticate(version, body) == (
            message.error_code,
            message.error_message or "",
            message.auth_bytes,
            message.session_lifetime_ms,
        )


def test_an_address_is_written_as_it_is_given() -> None:
    assert str(BrokerAddress("host", 9092)) == "host:9092"
    assert str(BrokerAddress("::1", 9092)) == "[::1]:9092"
