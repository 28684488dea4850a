"""What conformance tests say to a broker again and again, as plain functions over a WireClient.

Every function sends one request and gives back the part of the answer that tests look at. Nothing
is retried and no error is raised: error codes are what the tests are about. Setting up is another
matter: `DialogueCluster` waits until what it made can be used.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from random import randrange, shuffle
from typing import Final
from uuid import uuid4

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from odradek.protocol.records import Record, build_batch, iter_records, read_header
from odradek.protocol.types import Uuid
from tests.conformance.routing import ARE_RESTARTED, REPLICAS_MAX, ClientRouter, Nodes
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, is_kafka_4, versions_of

# Newest versions that name topics rather than number them, and are served everywhere.
PRODUCE: Final = 9
FETCH: Final = 12
LIST_OFFSETS: Final = 7
METADATA: Final = 12

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3

BROKER_DEFAULT: Final = -1
"""The replication factor of the brokers' configuration (KIP-464)."""


def now_ms() -> int:
    """The time, as record timestamps have it."""
    return time.time_ns() // 1_000_000


def unique(prefix: str) -> str:
    """A name that no other test uses."""
    return f"{prefix}-{uuid4().hex[:12]}"


def batch_of(
    *values: bytes | None,
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    **options: int,
) -> bytes:
    """A record batch of these values; now, without keys and headers unless said otherwise.

    While nodes restart it is of an idempotent producer of its own: the client repeats a request
    whose answer was lost, and the batch must be in the log once.
    """
    if ARE_RESTARTED and "attributes" not in options:
        idempotent = {"producer_id": randrange(1 << 40, 1 << 62), "producer_epoch": 0}
        options = {**idempotent, "base_sequence": 0, **options}
    now = now_ms()
    records = [
        Record(
            index,
            timestamps[index] if timestamps else now,
            keys[index] if keys else None,
            value,
        )
        for index, value in enumerate(values)
    ]
    return build_batch(records, **options)  # type: ignore[arg-type]  # the options' own types


def produce(
    wire: WireClient,
    topic: str,
    batch: bytes,
    *,
    partition: int = 0,
    acks: int = -1,
    version: int = PRODUCE,
) -> PartitionProduceResponse:
    """The answer for one batch to one partition."""
    answer = wire.ask(
        produce_request(topic, {partition: batch}, acks=acks), version, ProduceResponse
    )
    ((result,),) = (topic.partition_responses for topic in answer.responses)
    assert result.index == partition
    return result


def produce_request(topic: str, batches: Mapping[int, bytes], *, acks: int = -1) -> ProduceRequest:
    """A Produce request of one topic, by name."""
    partitions = [
        PartitionProduceData(index=index, records=memoryview(batch))
        for index, batch in batches.items()
    ]
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=partitions)],
    )


def append(wire: WireClient, topic: str, *values: bytes | None, partition: int = 0) -> int:
    """Produce one batch that must be accepted; its base offset."""
    result = produce(wire, topic, batch_of(*values), partition=partition)
    assert result.error_code == ErrorCode.NONE, result
    return result.base_offset


def fetch_request(
    topic: str,
    offsets: Mapping[int, int],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 10_000_000,
    session_id: int = 0,
    session_epoch: int = -1,
) -> FetchRequest:
    """A Fetch request of one topic, by name; partition to offset. No topic if there is none."""
    partitions = [
        FetchPartition(
            partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes
        )
        for index, offset in offsets.items()
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=topic, partitions=partitions)] if partitions else [],
    )


def partitions_of(answer: FetchResponse) -> dict[int, PartitionData]:
    """The partitions of a Fetch answer of at most one topic."""
    assert len(answer.responses) <= 1
    topics: Iterable[FetchableTopicResponse] = answer.responses
    return {data.partition_index: data for topic in topics for data in topic.partitions}


def fetch(
    wire: WireClient,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    version: int = FETCH,
    max_wait_ms: int = 0,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 10_000_000,
) -> PartitionData:
    """What one partition answers from that offset on, without a session."""
    request = fetch_request(
        topic,
        {partition: offset},
        max_wait_ms=max_wait_ms,
        max_bytes=max_bytes,
        partition_max_bytes=partition_max_bytes,
    )
    answer = wire.ask(request, version, FetchResponse)
    assert answer.error_code == ErrorCode.NONE
    return partitions_of(answer)[partition]


def bytes_of(data: PartitionData) -> bytes:
    """The records of a Fetch answer in one piece."""
    records = data.records
    if records is None:
        return b""
    return bytes(records) if isinstance(records, bytes | memoryview) else b"".join(records)


def batches_of(data: PartitionData) -> list[memoryview]:
    """The whole batches of a Fetch answer; Kafka may cut the last one short, clients drop that."""
    view = memoryview(bytes_of(data))
    found = []
    while len(view) >= 12:
        size = 12 + int.from_bytes(view[8:12])
        if size > len(view):
            break
        found.append(view[:size])
        view = view[size:]
    return found


def records_of(data: PartitionData) -> list[Record]:
    """The records of a Fetch answer, also those before the offset that was asked for."""
    return [
        record for batch in batches_of(data) for record in iter_records(batch, read_header(batch))
    ]


def values_of(data: PartitionData) -> list[bytes | None]:
    """The values of a Fetch answer."""
    return [record.value for record in records_of(data)]


def list_offset(
    wire: WireClient,
    topic: str,
    timestamp: int,
    *,
    partition: int = 0,
    version: int = LIST_OFFSETS,
    current_leader_epoch: int = -1,
) -> ListOffsetsPartitionResponse:
    """The answer to one timestamp or special value."""
    return list_offsets(
        wire,
        topic,
        [
            ListOffsetsPartition(
                partition_index=partition,
                timestamp=timestamp,
                current_leader_epoch=current_leader_epoch,
            )
        ],
        version=version,
    )[0]


def list_offsets(
    wire: WireClient,
    topic: str,
    partitions: list[ListOffsetsPartition],
    *,
    version: int = LIST_OFFSETS,
) -> list[ListOffsetsPartitionResponse]:
    """The answers for some partitions of one topic."""
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=partitions)]
    )
    answer = wire.ask(request, version, ListOffsetsResponse)
    return answer.topics[0].partitions


def create_topic(
    wire: WireClient,
    name: str,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
    *,
    replication_factor: int = BROKER_DEFAULT,
    version: int = 7,
) -> CreatableTopicResult:
    """The answer to creating one topic; it may not be usable at once."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[
            CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    return wire.ask(request, version, CreateTopicsResponse).topics[0]


def describe_topic(wire: WireClient, name: str) -> MetadataResponseTopic:
    """One topic's Metadata; it is not created by asking."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    return wire.ask(request, METADATA, MetadataResponse).topics[0]


class DialogueCluster:
    """The cluster under test, and the making of what tests need there."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes: Final = nodes
        self.bootstrap: Final = ",".join(nodes.addresses)
        self.versions: Final = versions_of(self.bootstrap)
        self.is_kafka_4: Final = is_kafka_4(self.bootstrap)

    @property
    def replication_factor(self) -> int:
        """How many replicas a partition has whose topic says nothing else."""
        return min(REPLICAS_MAX, len(self.nodes.addresses))

    @property
    def min_insync_replicas(self) -> int:
        """How many of them must be in sync for acks=all."""
        return max(1, self.replication_factor - 1)

    def connect(self) -> WireClient:
        """A new client that starts at another node each time; the caller closes it."""
        return self.nodes.connect(ClientRouter(self.nodes))

    def new_topic_of_any_age(self, partitions: int = 1) -> str:
        """A new topic that keeps records of 1970, which retention by time would take any moment."""
        return self.new_topic(partitions, {"retention.ms": "-1"})

    def new_topic(
        self,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        name: str | None = None,
    ) -> str:
        """A new topic that every node knows, of which every partition can be written and read; its
        name."""
        name = name or unique("topic")
        assert re.fullmatch(r"[a-zA-Z0-9._-]+", name)
        with self.connect() as wire:
            result = create_topic(wire, name, partitions, configs)
            assert result.error_code == ErrorCode.NONE, result
            self.wait_for_topic(wire, name, partitions)
        return name

    def new_topic_of_one_leader(self, partitions: int) -> str:
        """A new topic whose partitions are all led by one node, for requests that name several:
        each goes to a single node."""
        nodes = list(self.nodes.ids.values())
        shuffle(nodes)
        replicas = nodes[: self.replication_factor]
        topic = CreatableTopic(
            name=unique("topic"),
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=replicas)
                for index in range(partitions)
            ],
        )
        with self.connect() as wire:
            request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
            (result,) = wire.ask(request, 7, CreateTopicsResponse).topics
            assert result.error_code == ErrorCode.NONE, result
            self.wait_for_topic(wire, topic.name, partitions)
        return topic.name

    def wait_for_topic(self, wire: WireClient, name: str, partitions: int = 1) -> None:
        """Return when every node knows the topic and each partition answers as a leader does."""

        def is_led() -> bool:
            return all(
                list_offset(wire, name, LATEST, partition=index).error_code == ErrorCode.NONE
                for index in range(partitions)
            )

        wait_until(is_led, timeout_s=30, what=f"all {partitions} partitions of {name} have leaders")
        self.nodes.wait_until_known(name, partitions)

    def topic_id(self, name: str) -> Uuid:
        """The id of a topic that exists."""
        with self.connect() as wire:
            topic = describe_topic(wire, name)
        assert topic.error_code == ErrorCode.NONE
        return topic.topic_id
