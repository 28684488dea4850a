"""Fetch requests and their responses, for tests with a router harness.

The topics have the ids of `NUMBERS`, so that the same request can be sent in versions with names
and in versions with ids.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from odradek.node.router.handlers.fetch import handle_fetch
from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.protocol.records import TRANSACTIONAL
from tests.support.controller_harness import topic_id
from tests.support.router_harness import PendingRequest, RouterHarness
from tests.support.stores import NOW_MS, batch_of, offsets_of, split_batches

NEWEST = 18
NUMBERS = {"t": 1, "other": 2}


@contextmanager
def fetch_harness(folder: Path, loop: asyncio.AbstractEventLoop) -> Iterator[RouterHarness]:
    """A router that leads three partitions of each topic."""
    harness = RouterHarness(folder, loop=loop)
    for name, number in NUMBERS.items():
        harness.controller.has(name, number, 3)
    harness.follow()
    yield harness
    harness.close()


def request(
    offsets: Mapping[int, int],
    *,
    topic: str = "t",
    partition_max_bytes: int = 1 << 20,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    **options: int | str,
) -> FetchRequest:
    """A request of one topic: partition to offset. By default it does not wait."""
    partitions = [
        FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=current_leader_epoch,
            last_fetched_epoch=last_fetched_epoch,
        )
        for partition, offset in offsets.items()
    ]
    number = NUMBERS.get(topic, 99)
    topics = [FetchTopic(topic=topic, topic_id=topic_id(number), partitions=partitions)]
    asked: dict[str, int | str] = {"min_bytes": 1, "session_epoch": -1, **options}
    return FetchRequest(
        topics=topics if partitions else [],
        **asked,  # type: ignore[arg-type]  # numbers, and the rack
    )


def answers(response: FetchResponse) -> dict[int, PartitionData]:
    assert response.error_code == ErrorCode.NONE
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


def order(response: FetchResponse) -> list[int]:
    return [data.partition_index for topic in response.responses for data in topic.partitions]


def fetch(
    harness: RouterHarness, asked: FetchRequest, version: int = NEWEST
) -> dict[int, PartitionData]:
    return answers(harness.call(handle_fetch, asked, version))


def one(
    harness: RouterHarness, offset: int, version: int = NEWEST, **options: int | str
) -> PartitionData:
    return fetch(harness, request({0: offset}, **options), version)[0]  # type: ignore[arg-type]  # what a request has


def waiting(harness: RouterHarness, asked: FetchRequest) -> PendingRequest[FetchResponse]:
    """A Fetch that was sent and waits."""
    pending = harness.begin_request(handle_fetch, asked, NEWEST)
    assert not pending.is_done
    assert harness.services.fetch_purgatory.parked_count == 1
    return pending


def bytes_of(data: PartitionData) -> bytes:
    assert data.records is not None
    return (
        bytes(data.records)
        if isinstance(data.records, bytes | memoryview)
        else b"".join(data.records)
    )


def bases(data: PartitionData) -> list[int]:
    return offsets_of(split_batches(bytes_of(data)))


def transactional(count: int, sequence: int, producer_id: int = 7) -> bytes:
    """A batch in a transaction that stays open."""
    return batch_of(
        count,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=TRANSACTIONAL,
    )


def end_transaction(harness: RouterHarness, kind: ControlType, producer_id: int = 7) -> None:
    """Write the marker that ends a producer's transaction in partition 0 of `t`."""
    marker = build_end_transaction_batch(
        EndTransactionMarker(kind, 0),
        timestamp_ms=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
    )
    harness.append("t", marker, is_client=False)
