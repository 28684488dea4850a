"""A router with its coordinators, and a transactional client of either version."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from odradek.coordinator.group.offsets.committed_offsets import CommitResponse
from odradek.node.router.handlers.group_offsets import handle_offset_fetch
from odradek.node.router.handlers.groups import KEY_TYPE_TRANSACTION, handle_find_coordinator
from odradek.node.router.handlers.produce import handle_produce
from odradek.node.router.handlers.transactional_offsets import handle_txn_offset_commit
from odradek.node.router.handlers.transactions import (
    handle_add_offsets_to_txn,
    handle_add_partitions_to_txn,
    handle_describe_transactions,
    handle_end_txn,
    handle_init_producer_id,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch
from tests.support.group_harness import GroupHarness
from tests.support.stores import NOW_MS
from tests.support.waiting import wait_until

TIMEOUT_MS = 60_000
TOPIC = "t"


class TransactionHarness(GroupHarness):
    """A topic of two partitions, and both coordinators' topics."""

    def __init__(self, folder: Path, *, static: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, static=static)
        self.topic_id = self.have_topic(TOPIC, 1, 2)
        for key_type in (0, KEY_TYPE_TRANSACTION):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"])
            [found] = self.call(handle_find_coordinator, request, 6).coordinators
            assert found.error_code == ErrorCode.NONE

    def last_stable_offset(self, partition: int = 0) -> int:
        store, number = self.place(TOPIC, partition)
        reader = self.services.logs.reader(store)
        assert reader is not None
        return reader.status.last_stable_offset(number)

    def end_offset(self, partition: int = 0) -> int:
        store, number = self.place(TOPIC, partition)
        reader = self.services.logs.reader(store)
        assert reader is not None
        return reader.status.log_end_offset(number)

    def state(self, transactional_id: str = "tx") -> str:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        [found] = self.call(handle_describe_transactions, request).transaction_states
        assert found.error_code == ErrorCode.NONE
        return found.transaction_state

    def wait_for(self, state: str) -> None:
        """Run the loop until the transaction is in this state."""

        def is_there() -> bool:
            self.turn_loop(0.001)
            return self.state() == state

        wait_until(is_there, what=f"the transaction is {state}")


class TransactionalClient:
    """A producer of version 1 (it adds partitions itself) or 2 (the broker does)."""

    def __init__(self, harness: TransactionHarness, *, version: int) -> None:
        self.harness = harness
        self.is_new = version == 2
        self.producer_id = self.producer_epoch = -1
        self.sequences: dict[int, int] = {}

    def init(self) -> int:
        request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=TIMEOUT_MS)
        answer = self.harness.call(handle_init_producer_id, request)
        if not answer.error_code:
            self._become(answer.producer_id, answer.producer_epoch)
        return answer.error_code

    def add(self, *partitions: int, topic: str = TOPIC) -> dict[int, int]:
        """The error codes of AddPartitionsToTxn."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[TopicPartitions(name=topic, partitions=list(partitions))],
        )
        answer = self.harness.call(handle_add_partitions_to_txn, request, 3)
        [found] = answer.results_by_topic_v3_and_below
        return {result.partition_index: result.error_code for result in found.partitions}

    def produce(self, *partitions: int, version: int | None = None) -> list[int]:
        """One record to each partition; their error codes."""
        topic = TopicProduceData(
            name=TOPIC,
            topic_id=self.harness.topic_id,
            partition_data=[
                PartitionProduceData(index=index, records=memoryview(self._batch(index)))
                for index in partitions
            ],
        )
        request = ProduceRequest(
            transactional_id="tx", acks=-1, timeout_ms=5_000, topic_data=[topic]
        )
        if version is None:
            version = 12 if self.is_new else 9
        answer = self.harness.call(handle_produce, request, version)
        assert isinstance(answer, ProduceResponse)
        codes = []
        for partition in answer.responses[0].partition_responses:
            codes.append(partition.error_code)
            if not partition.error_code:
                self.sequences[partition.index] = self.sequences.get(partition.index, 0) + 1
        return codes

    def end(self, *, is_commit: bool = True) -> int:
        request = EndTxnRequest(
            transactional_id="tx",
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=is_commit,
        )
        answer = self.harness.call(handle_end_txn, request, 5 if self.is_new else 4)
        if self.is_new and not answer.error_code:
            self._become(answer.producer_id, answer.producer_epoch)
        return answer.error_code

    def add_offsets(self) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id="tx",
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id="g",
        )
        return self.harness.call(handle_add_offsets_to_txn, request).error_code

    def commit_offset(self, offset: int, *, version: int | None = None) -> int:
        return self.commit_code(self.begin_commit_offset(offset, version=version))

    def commit_code(self, response: "asyncio.Future[CommitResponse]") -> int:
        """The error code of the one partition, once it is there."""
        return self.harness.wait(response).topics[0].partitions[0].error_code

    def begin_commit_offset(
        self, offset: int, *, version: int | None = None, group: str = "g"
    ) -> "asyncio.Future[CommitResponse]":
        """TxnOffsetCommit, without waiting for the response."""
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=TOPIC, topic_id=self.harness.topic_id, partitions=[partition]
                )
            ],
        )
        if version is None:
            version = 5 if self.is_new else 3
        return self.harness.begin(handle_txn_offset_commit, request, version)

    def fetch_offset(self) -> int:
        """The group's stable offset; minus the error code if there is one."""
        topic = OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
        group = OffsetFetchRequestGroup(group_id="g", topics=[topic])
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        [found] = self.harness.call(handle_offset_fetch, request, 9).groups
        partition = found.topics[0].partitions[0]
        return -partition.error_code or partition.committed_offset

    def _become(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.sequences.clear()

    def _batch(self, partition: int) -> bytes:
        return build_batch(
            [Record(0, NOW_MS, b"k", b"v")],
            attributes=TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.sequences.get(partition, 0),
        )
