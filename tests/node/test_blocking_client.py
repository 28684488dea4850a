"""Requests to a real broker in the newest version that both sides support."""

from collections.abc import Iterator

import pytest

from odradek.node.blocking_client import BlockingClient, NotABrokerError
from odradek.node.cli.connection import split_address
from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.apis import ApiKey
from odradek.protocol.codec import encode_response, encode_response_header
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    DescribeClusterRequest,
    MetadataRequest,
)
from odradek.protocol.messages.rewinds import RewindGroupRequest, RewindGroupResponse
from tests.node.cli.test_probe import answering


@pytest.fixture
def client(kafka_broker: EmbeddedBroker) -> Iterator[BlockingClient]:
    with BlockingClient(*split_address(kafka_broker.bootstrap_servers), 10.0) as client:
        yield client


@pytest.mark.e2e
def test_requests_of_several_apis_share_a_connection(client: BlockingClient) -> None:
    metadata = client.ask(MetadataRequest(topics=[]))
    cluster = client.ask(DescribeClusterRequest())
    assert metadata.cluster_id == cluster.cluster_id
    assert {b.node_id for b in metadata.brokers} == {b.broker_id for b in cluster.brokers}


def test_an_unsupported_api_is_not_requested() -> None:
    """By a server that supports the protocol, but not this request."""
    versions = ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=0)]
    )
    body = b"".join(
        (
            encode_response_header(ApiKey.API_VERSIONS, 0, 0),
            *encode_response(ApiKey.API_VERSIONS, 0, versions),
        )
    )
    reply = len(body).to_bytes(4, "big") + body
    with answering(reply) as address, BlockingClient(address.host, address.port, 10.0) as client:
        assert client.serves(ApiKey.API_VERSIONS)
        assert not client.serves(ApiKey.METADATA)
        with pytest.raises(NotABrokerError, match="Metadata"):
            client.ask(MetadataRequest())


def test_a_private_api_needs_not_be_advertised() -> None:
    response = RewindGroupResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    body = b"".join(
        (
            encode_response_header(ApiKey.REWIND_GROUP, 0, 0),
            *encode_response(ApiKey.REWIND_GROUP, 0, response),
        )
    )
    reply = len(body).to_bytes(4, "big") + body
    with answering(reply) as address, BlockingClient(address.host, address.port, 10.0) as client:
        assert client.ask(RewindGroupRequest()) == response


def test_a_connection_closed_on_a_private_api_means_that_it_is_not_supported() -> None:
    with (
        answering(b"") as address,
        BlockingClient(address.host, address.port, 10.0) as client,
        pytest.raises(NotABrokerError, match="the broker does not support RewindGroup requests"),
    ):
        client.ask(RewindGroupRequest())
