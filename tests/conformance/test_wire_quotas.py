"""Client quotas (48, 49) are known on every node, and each broker counts for itself.

How exactly clients are throttled: tests/e2e/test_client_quotas.py.
"""

from collections.abc import Iterator

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import ProduceResponse
from odradek.protocol.messages.quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tests.conformance.dialogue import PRODUCE, DialogueCluster, batch_of, produce_request
from tests.support.quota_dialogue import Entity, alter
from tests.support.waiting import wait_until
from tests.support.wire import CLIENT_ID, WireClient

ENTITY: Entity = {"client-id": CLIENT_ID}
RATE = "producer_byte_rate"

pytestmark = pytest.mark.no_restarts("a client with a new connection is not throttled")


@pytest.fixture
def limited(wire: WireClient) -> Iterator[None]:
    """All clients of these tests may produce 100,000 bytes per second."""
    answer = alter(wire, [(ENTITY, {RATE: 100_000.0})])
    assert [entry.error_code for entry in answer.entries] == [ErrorCode.NONE]
    yield
    alter(wire, [(ENTITY, {RATE: None})])


@pytest.mark.usefixtures("limited")
def test_the_leader_of_a_partition_throttles_its_producers(
    cluster: DialogueCluster, wire: WireClient
) -> None:
    topic = cluster.new_topic()
    request = produce_request(topic, {0: batch_of(b"x" * 300_000)})

    def throttle_ms() -> int:
        answer = wire.ask(request, PRODUCE, ProduceResponse)
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code == ErrorCode.NONE
        return answer.throttle_time_ms

    # Three seconds' quota each, over a window of ten to eleven seconds.
    assert wait_until(throttle_ms)


@pytest.mark.usefixtures("limited")
def test_every_node_describes_the_quotas(cluster: DialogueCluster) -> None:
    for address in cluster.bootstrap.split(","):
        with WireClient(address) as client:

            def is_known(client: WireClient = client) -> bool:
                request = DescribeClientQuotasRequest()
                answer = client.ask(request, 1, DescribeClientQuotasResponse)
                return any(
                    part.entity_name == CLIENT_ID and value.value == 100_000.0
                    for entry in answer.entries or ()
                    for part in entry.entity
                    for value in entry.values
                )

            wait_until(is_known)
