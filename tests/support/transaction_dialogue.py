"""A transactional producer that speaks the protocol, request by request, over one connection."""

import asyncio

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
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
from odradek.protocol.records import TRANSACTIONAL
from tests.support.controller_harness import topic_id
from tests.support.dispatch_fixture import DispatchClient
from tests.support.stores import batch_of


class TransactionDialogue:
    """A transactional producer of the topic `t`, over one connection. From version 12 on the broker
    adds partitions."""

    def __init__(self, client: DispatchClient, version: int) -> None:
        self.client = client
        self.version = version
        self.producer_id = self.producer_epoch = -1
        self.sequence = 0

    async def begin(self) -> None:
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
        await self.client.ask(find, 6, FindCoordinatorResponse)
        request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
        answer = await self.client.ask(request, 5, InitProducerIdResponse)
        assert answer.error_code == ErrorCode.NONE
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    async def add(self) -> None:
        """As a client does that is older than version 12."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[TopicPartitions(name="t", partitions=[0])],
        )
        answer = await self.client.ask(request, 3, AddPartitionsToTxnResponse)
        ((result,),) = [each.partitions for each in answer.results_by_topic_v3_and_below]
        assert result.error_code == ErrorCode.NONE

    async def send(self, size: int = 10) -> int:
        batch = batch_of(
            1,
            size=size,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.sequence,
            attributes=TRANSACTIONAL,
        )
        data = [PartitionProduceData(index=0, records=memoryview(batch))]
        topics = [TopicProduceData(name="t", topic_id=topic_id(1), partition_data=data)]
        request = ProduceRequest(
            transactional_id="tx", acks=-1, timeout_ms=5_000, topic_data=topics
        )
        response = await self.client.ask(request, self.version, ProduceResponse)
        ((partition,),) = [topic.partition_responses for topic in response.responses]
        self.sequence += not partition.error_code
        return partition.error_code

    async def end(self) -> None:
        request = EndTxnRequest(
            transactional_id="tx",
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=True,
        )
        while True:
            version = 5 if self.version >= 12 else 4
            answer = await self.client.ask(request, version, EndTxnResponse)
            assert answer.error_code in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS)
            if not answer.error_code:
                break
        if answer.producer_id >= 0:
            self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
            self.sequence = 0

    async def described(self) -> str:
        request = DescribeTransactionsRequest(transactional_ids=["tx"])
        answer = await self.client.ask(request, 0, DescribeTransactionsResponse)
        return answer.transaction_states[0].transaction_state

    async def wait_until_complete(self) -> None:
        async with asyncio.timeout(10):
            while await self.described() != "CompleteCommit":
                pass
