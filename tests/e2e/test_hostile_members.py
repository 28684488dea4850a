"""A thousand members of a share group that wait for the same records keep nobody else waiting.

A probe sends requests every 5 ms meanwhile, as in test_hostile_work.py.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from odradek.protocol.messages.produce import ProduceResponse
from odradek.protocol.messages.share import (
    AcknowledgementBatch,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareRequestPartition,
    ShareRequestTopic,
)
from odradek.protocol.records import Record, build_batch
from odradek.protocol.types import uuid_to_text
from tests.e2e.conftest import Report
from tests.support.hostile_work import (
    GROUP,
    WAIT_MS_MAX,
    Ground,
    error_codes,
    ground_of,
    produce,
)
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

MEMBERS: Final = 1_000
NOW_MS: Final = int(1000 * time.time())
TOPIC: Final = "released"
RELEASE: Final = 2
BY_RECORD_LIMIT: Final = 1
"""Acquire mode (KIP-1206)."""


def share_fetch(
    topic_id: bytes, member: int, epoch: int, *, records: int, wait_ms: int
) -> ShareFetchRequest:
    partition = ShareRequestPartition(partition_index=0, acknowledgement_batches=[])
    return ShareFetchRequest(
        group_id=GROUP,
        member_id=member_id(member),
        share_session_epoch=epoch,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        max_records=records,
        batch_size=records,
        share_acquire_mode=BY_RECORD_LIMIT,
        topics=[ShareRequestTopic(topic_id=topic_id, partitions=[partition])],
    )


def member_id(number: int) -> str:
    return uuid_to_text((number + 1).to_bytes(16, "big"))


def acquired(response: ShareFetchResponse) -> int:
    """How many records."""
    assert not response.error_code
    return sum(
        each.last_offset - each.first_offset + 1
        for topic in response.responses
        for partition in topic.partitions
        for each in partition.acquired_records
    )


def test_released_records_wake_a_thousand_members(tmp_path: Path, report: Report) -> None:
    with ground_of(tmp_path) as ground, ExitStack() as stack:
        ground.broker.create_topic(TOPIC)
        holder = stack.enter_context(WireClient(ground.broker.bootstrap_servers))
        topic_id = hold_all(ground, holder)
        members = [
            stack.enter_context(WireClient(ground.broker.bootstrap_servers, timeout_s=60.0))
            for _ in range(MEMBERS)
        ]
        for number, member in enumerate(members, start=1):
            member.post(share_fetch(topic_id, number, 0, records=1, wait_ms=60_000), 2)
        assert members[-1].is_silent(0.5), "all records are held"

        batch = AcknowledgementBatch(
            first_offset=0, last_offset=MEMBERS - 1, acknowledge_types=[RELEASE]
        )
        partition = ShareRequestPartition(partition_index=0, acknowledgement_batches=[batch])
        release = ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=member_id(0),
            share_session_epoch=1,
            topics=[ShareRequestTopic(topic_id=topic_id, partitions=[partition])],
        )
        ground.probe.longest_ms()
        assert not holder.ask(release, 2, ShareAcknowledgeResponse).error_code
        counts = [acquired(member.receive(ShareFetchResponse)) for member in members]
        assert counts == [1] * MEMBERS
        waits = ground.probe.longest_ms()
        report(f"the probe waited {waits} ms (without attack {ground.baseline_ms:.0f})")
        assert max(waits.values()) <= WAIT_MS_MAX + ground.baseline_ms
        assert ground.broker.processes == ground.processes, "a process was restarted"


def join(wire: WireClient) -> None:
    """Have the group prepare its share of the partition: one member is enough."""
    epoch = 0

    def is_assigned() -> bool:
        nonlocal epoch
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id(0),
            member_epoch=epoch,
            subscribed_topic_names=None if epoch else [TOPIC],
        )
        answer = wire.ask(request, 1, ShareGroupHeartbeatResponse)
        assert not answer.error_code
        epoch = answer.member_epoch
        return answer.assignment is not None and bool(answer.assignment.topic_partitions)

    wait_until(is_assigned, what="the member has the partition")


def hold_all(ground: Ground, holder: WireClient) -> bytes:
    """Have one member acquire as many records as there are others. The topic's id."""
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    topic_id = holder.ask(wanted, 12, MetadataResponse).topics[0].topic_id
    earliest = IncrementalAlterableConfig(
        name="share.auto.offset.reset", config_operation=0, value="earliest"
    )
    resource = IncrementalAlterConfigsResource(
        resource_type=32, resource_name=GROUP, configs=[earliest]
    )
    ground.broker.ask(IncrementalAlterConfigsRequest(resources=[resource]))
    records = [Record(number, NOW_MS, None, b"") for number in range(MEMBERS)]
    appended = holder.ask(produce(TOPIC, build_batch(records)), 9, ProduceResponse)
    assert not any(error_codes(appended))
    join(holder)
    fetch = share_fetch(topic_id, 0, 0, records=MEMBERS, wait_ms=10_000)
    assert acquired(holder.ask(fetch, 2, ShareFetchResponse)) == MEMBERS
    return topic_id
