"""The bytes of private messages about clients. No other codec has them."""

from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.messages.clients import (
    DescribeClientsRequest,
    DescribeClientsResponse,
    DescribedClient,
    DescribedClientInstance,
    DescribedClientMetric,
    DescribedLabel,
)
from tests.support.message_samples import decode, encode

CLIENTS = APIS[ApiKey.DESCRIBE_CLIENTS]


def test_questions_for_all_and_for_some_clients_have_these_bytes() -> None:
    assert encode(CLIENTS, "Request", 0, DescribeClientsRequest()) == b"\0\0\0\0"
    request = DescribeClientsRequest(
        client_ids=["c"], client_instance_ids=[bytes(16)], include_metrics=True
    )
    body = b"\x02\x02c" + b"\x02" + bytes(16) + b"\x01" + b"\0"
    assert encode(CLIENTS, "Request", 0, request) == body
    assert decode(CLIENTS, "Request", 0, body) == request


def test_clients_and_their_metrics_come_back_as_they_were() -> None:
    metric = DescribedClientMetric(
        name="m", labels=[DescribedLabel(name="topic", value="t")], is_counter=True, value=0.1
    )
    response = DescribeClientsResponse(
        clients=[DescribedClient(client_id="c", connection_count=3, connected_ms=7)],
        instances=[
            DescribedClientInstance(
                client_instance_id=bytes(range(16)),
                requested_metrics=["*"],
                metrics=[metric],
                attributes=[DescribedLabel(name="group_id", value="g")],
            )
        ],
        omitted_count=2,
    )
    body = encode(CLIENTS, "Response", 0, response)
    assert decode(CLIENTS, "Response", 0, body) == response
