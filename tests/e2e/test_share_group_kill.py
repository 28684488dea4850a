"""SIGKILL of the leader of a share partition while acknowledgements are in flight.

A member acknowledges its records, and the router or the worker is killed before the response.
Acknowledgements with a response are durable, records without one are delivered again, and no record
is stuck. The member speaks the wire protocol, so that the test knows every response.
"""

import time

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
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
from odradek.protocol.types import Uuid
from tests.conformance.dialogue import batch_of, produce
from tests.e2e.conftest import Report, StartNode
from tests.support.waiting import wait_until
from tests.support.wire import ClosedByPeer, WireClient

pytestmark = pytest.mark.slow

TOPIC, GROUP, MEMBER = "orders", "shippers", "AAAAAAAAAAAAAAAAAAAAAQ"
COUNT = 600
AT_ONCE = 20
WAIT_S = 60.0
ALL_S = 180.0
"""For all records and kills: locks from before a kill may have to expire first."""
RETRIED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


class Member:
    """One member over several connections, one after another. `done` are the offsets with
    acknowledged responses."""

    def __init__(self, node: EmbeddedBroker, topic_id: Uuid) -> None:
        self._node = node
        self._topic_id = topic_id
        self._wire: WireClient | None = None
        self._epoch = 0
        self.done: set[int] = set()
        self.doubtful: set[int] = set()
        """Acknowledged without a response: they may be delivered again, or not."""
        self.deliveries: dict[int, int] = {}

    def connection(self) -> WireClient:
        if self._wire is None:
            self._wire = WireClient(self._node.bootstrap_servers)
            self._epoch = 0
        return self._wire

    def lose(self) -> None:
        """The connection is closed, and the share session with it."""
        if self._wire is not None:
            self._wire.close()
        self._wire = None

    def join(self) -> None:
        """Join until the share state of the partition is initialized."""

        def is_in() -> bool:
            request = ShareGroupHeartbeatRequest(
                group_id=GROUP, member_id=MEMBER, subscribed_topic_names=[TOPIC]
            )
            find = FindCoordinatorRequest(coordinator_keys=[GROUP])
            try:
                # The first FindCoordinator creates the topic of share states.
                self.connection().ask(find, 4, FindCoordinatorResponse)
                answer = self.connection().ask(request, 1, ShareGroupHeartbeatResponse)
            except (ClosedByPeer, OSError):
                self.lose()
                return False
            assert answer.error_code in RETRIED | {ErrorCode.NONE}, answer
            return answer.error_code == ErrorCode.NONE

        wait_until(is_in, timeout_s=WAIT_S, what="the member is in the group")

    def acquire(self) -> list[AcknowledgementBatch]:
        """Acquire records; returns the batches that accept all of them."""
        request = ShareFetchRequest(
            group_id=GROUP,
            member_id=MEMBER,
            share_session_epoch=self._epoch,
            max_wait_ms=200,
            min_bytes=1,
            max_records=AT_ONCE,
            batch_size=AT_ONCE,
            share_acquire_mode=1,
            topics=[
                ShareRequestTopic(
                    topic_id=self._topic_id, partitions=[ShareRequestPartition(partition_index=0)]
                )
            ]
            if self._epoch == 0
            else [],
        )
        answer = self.connection().ask(request, 2, ShareFetchResponse)
        assert answer.error_code == ErrorCode.NONE, answer
        self._epoch += 1
        held = []
        for topic in answer.responses:
            for data in topic.partitions:
                # Right after a restart a router may not know its partitions yet.
                assert data.error_code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER), data
                for found in data.acquired_records:
                    offsets = range(found.first_offset, found.last_offset + 1)
                    again = self.done.intersection(offsets)
                    assert not again, f"acknowledged, and delivered again: {sorted(again)}"
                    for offset in offsets:
                        self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
                    held.append(
                        AcknowledgementBatch(
                            first_offset=found.first_offset,
                            last_offset=found.last_offset,
                            acknowledge_types=[1],
                        )
                    )
        return held

    def post(self, held: list[AcknowledgementBatch]) -> None:
        """Send acknowledgements without waiting for the response."""
        request = ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=MEMBER,
            share_session_epoch=self._epoch,
            topics=[
                ShareRequestTopic(
                    topic_id=self._topic_id,
                    partitions=[ShareRequestPartition(acknowledgement_batches=held)],
                )
            ],
        )
        self._epoch += 1
        self.connection().post(request, 2)

    def receive(self, held: list[AcknowledgementBatch]) -> bool:
        """Read the response, if it comes; returns whether it has no error. If not, the records
        are still held."""
        offsets = {
            offset for batch in held for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        try:
            answer = self.connection().receive(ShareAcknowledgeResponse)
        except (ClosedByPeer, OSError):
            self.doubtful |= offsets
            raise
        assert answer.error_code == ErrorCode.NONE, answer
        [[data]] = [topic.partitions for topic in answer.responses]
        if data.error_code == ErrorCode.NONE:
            self.done |= offsets
        return data.error_code == ErrorCode.NONE


@pytest.mark.slow
def test_no_acknowledged_record_comes_again_and_none_is_lost_when_processes_are_killed(
    start_node: StartNode, report: Report
) -> None:
    node = start_node()
    node.create_topic(TOPIC, partitions=1)
    with WireClient(node.bootstrap_servers) as wire:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        [topic] = wire.ask(asked, 12, MetadataResponse).topics
        earliest = IncrementalAlterableConfig(name="share.auto.offset.reset", value="earliest")
        changed = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=32, resource_name=GROUP, configs=[earliest]
                )
            ]
        )
        wire.ask(changed, 1, IncrementalAlterConfigsResponse)
        for _ in range(COUNT // 50):
            assert produce(wire, TOPIC, batch_of(*[b"v"] * 50)).error_code == ErrorCode.NONE
    member = Member(node, topic.topic_id)
    member.join()
    kills = [(COUNT // 4, "router-0"), (COUNT // 2, "worker-0"), (3 * COUNT // 4, "router-0")]
    took: list[str] = []
    deadline = time.monotonic() + ALL_S
    while True:
        assert time.monotonic() < deadline, f"stuck after {len(member.done)} of {COUNT}"
        try:
            held = member.acquire()
            if not held:
                if len(member.done | member.doubtful) == COUNT:
                    break
                continue
            member.post(held)
            began = time.monotonic()
            if kills and len(member.done) >= kills[0][0]:
                node.kill_process(kills.pop(0)[1])
            while not member.receive(held):
                assert time.monotonic() < deadline, "the acknowledgement is not taken"
                member.post(held)
        except (ClosedByPeer, OSError):
            member.lose()
            node.wait_until_ready()
            member.join()
            took.append(f"{time.monotonic() - began:.2f}")
    assert kills == []
    assert member.done | member.doubtful == set(range(COUNT))
    # Some acknowledgements without a response were applied: those records are not delivered again,
    # and count.
    assert member.acquire() == []
    member.lose()
    report(f"seconds from the kill until the member was back: {', '.join(took)}")
