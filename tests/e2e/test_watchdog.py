"""A hanging transaction is found, shown, and aborted where that is enabled."""

import time
import urllib.request

import msgspec
from click.testing import CliRunner

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.cli.main import cli
from odradek.node.embedded import EmbeddedBroker
from odradek.node.supervisor import STATE_NAME, NodeState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch
from tests.e2e.bank import CALL_S
from tests.e2e.conftest import Report, StartNode
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

TOPIC = "orders"
NAME = "careless"
TIMEOUT_MS = 300
LATEST = -1
READ_COMMITTED = 1
SETTINGS = {
    # As with brokers without verification: Kafka's before 3.6.
    "transaction.partition.verification.enable": "false",
    "transaction.max.timeout.ms": str(TIMEOUT_MS),
    "transaction.watchdog.interval.ms": "100",
    "transaction.watchdog.margin.ms": "0",
    "http.listen": "127.0.0.1:0",
}


class UnfinishedTransactions:
    """A client of the first transaction version that writes on after it has ended a transaction."""

    def __init__(self, wire: WireClient) -> None:
        self.wire = wire
        self.sequence = 0
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=[NAME])

        def is_found() -> bool:
            answer = wire.ask(request, 4, FindCoordinatorResponse)
            return not answer.coordinators[0].error_code

        wait_until(is_found, what="there is a coordinator")
        init = InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=TIMEOUT_MS)
        owner = InitProducerIdResponse(error_code=ErrorCode.NOT_COORDINATOR)

        def is_owner() -> bool:
            nonlocal owner
            owner = wire.ask(init, 4, InitProducerIdResponse)
            return not owner.error_code

        wait_until(is_owner, what="the client has a producer id")
        self.producer_id, self.epoch = owner.producer_id, owner.producer_epoch

    def begin(self) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=NAME,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[TopicPartitions(name=TOPIC, partitions=[0])],
        )
        answer = self.wire.ask(request, 3, AddPartitionsToTxnResponse)
        [topic] = answer.results_by_topic_v3_and_below
        assert topic.partitions[0].error_code == ErrorCode.NONE

    def produce(self) -> None:
        batch = build_batch(
            [Record(0, int(time.time() * 1000), b"k", b"v")],
            attributes=TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
        )
        partition = PartitionProduceData(index=0, records=memoryview(batch))
        request = ProduceRequest(
            transactional_id=NAME,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=[partition])],
        )
        answer = self.wire.ask(request, 9, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        self.sequence += 1

    def abort(self) -> None:
        request = EndTxnRequest(
            transactional_id=NAME,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=False,
        )
        assert self.wire.ask(request, 3, EndTxnResponse).error_code == ErrorCode.NONE
        asked = DescribeTransactionsRequest(transactional_ids=[NAME])

        def is_over() -> bool:
            answer = self.wire.ask(asked, 0, DescribeTransactionsResponse)
            return answer.transaction_states[0].transaction_state == "CompleteAbort"

        wait_until(is_over, what="the abort is complete")


def hanging(node: EmbeddedBroker) -> list[dict[str, object]]:
    """The output of `odradek txn hanging`."""
    arguments = ["txn", "hanging", "-o", "json", "--bootstrap", node.bootstrap_servers]
    ran = CliRunner().invoke(cli, arguments)
    assert ran.exit_code == 0, ran.stderr
    rows: list[dict[str, object]] = msgspec.json.decode(ran.stdout)
    return rows


def metric(node: EmbeddedBroker, name: str) -> int:
    state = msgspec.json.decode((node.data / STATE_NAME).read_bytes(), type=NodeState)
    with urllib.request.urlopen(f"http://{state.http}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}{{"))
    return int(float(line.rpartition(" ")[2]))


def stable_end(wire: WireClient) -> int:
    """The last stable offset."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=READ_COMMITTED,
        topics=[ListOffsetsTopic(name=TOPIC, partitions=[partition])],
    )
    answer = wire.ask(request, 5, ListOffsetsResponse)
    return answer.topics[0].partitions[0].offset


def let_it_abort(wire: WireClient) -> None:
    resource = IncrementalAlterConfigsResource(
        resource_type=ConfigResourceType.BROKER,
        resource_name="",
        configs=[
            IncrementalAlterableConfig(
                name="transaction.watchdog.abort.enable", config_operation=0, value="true"
            )
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    [answer] = wire.ask(request, 1, IncrementalAlterConfigsResponse).responses
    assert answer.error_code == ErrorCode.NONE, answer.error_message


def test_a_transaction_that_hangs_is_found_shown_and_ended(
    start_node: StartNode, report: Report
) -> None:
    node = start_node(SETTINGS)
    node.create_topic(TOPIC)
    with WireClient(node.bootstrap_servers) as wire:
        client = UnfinishedTransactions(wire)
        client.begin()
        client.produce()
        client.abort()
        assert stable_end(wire) == 2
        client.produce()
        assert stable_end(wire) == 2
        wait_until(
            lambda: metric(node, "odradek_hanging_transactions") == 1,
            timeout_s=CALL_S,
            what="the watchdog has found it",
        )
        [row] = hanging(node)
        assert (row["topic"], row["partition"], row["start_offset"]) == (TOPIC, 0, 2)
        assert row["producer_id"] == client.producer_id
        assert stable_end(wire) == 2
        let_it_abort(wire)
        begun = time.monotonic()
        wait_until(lambda: stable_end(wire) == 4, timeout_s=CALL_S, what="it is aborted")
        report(f"aborted {time.monotonic() - begun:.2f} s after that was enabled")
        assert hanging(node) == []
        wait_until(
            lambda: metric(node, "odradek_hanging_transactions_aborted_total") == 1,
            timeout_s=CALL_S,
            what="that is counted",
        )
        assert metric(node, "odradek_hanging_transactions") == 0
