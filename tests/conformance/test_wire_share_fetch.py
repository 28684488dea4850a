"""ShareFetch and ShareAcknowledge on the wire (B.13): sessions, locks, and what is said to whoever
gets them wrong. What is expected is what Kafka 4.3.1 says."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.share import (
    AcknowledgementBatch,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareRequestPartition,
    ShareRequestTopic,
)
from odradek.protocol.types import Uuid
from tests.conformance.dialogue import DialogueCluster, batch_of, produce
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
NOBODY = b"\x09" * 16
WAIT_S = 30.0


def batch(first: int, last: int, *types: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))


class Member:
    """A member of a share group with a connection and a session of its own."""

    def __init__(self, cluster: DialogueCluster, group: str, topic: str) -> None:
        self.wire = cluster.connect()
        self.group = group
        self.name = str(uuid4())
        self.topic_id = cluster.topic_id(topic)
        self.epoch = 0
        find = FindCoordinatorRequest(coordinator_keys=[group])

        def is_in() -> bool:
            self.wire.ask(find, 4, FindCoordinatorResponse)
            request = ShareGroupHeartbeatRequest(
                group_id=group, member_id=self.name, subscribed_topic_names=[topic]
            )
            answer = self.wire.ask(request, 1, ShareGroupHeartbeatResponse)
            return answer.error_code == ErrorCode.NONE and answer.assignment is not None

        wait_until(is_in, timeout_s=WAIT_S, what="the member has its partitions")

    def respond(
        self,
        *batches: AcknowledgementBatch,
        epoch: int | None = None,
        partition: int = 0,
        max_wait_ms: int = 500,
    ) -> ShareFetchResponse:
        epoch = self.epoch if epoch is None else epoch
        asked = ShareRequestPartition(
            partition_index=partition, acknowledgement_batches=list(batches)
        )
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=100,
            batch_size=100,
            topics=[ShareRequestTopic(topic_id=self.topic_id, partitions=[asked])]
            if epoch == 0 or batches
            else [],
        )
        answer = self.wire.ask(request, 1, ShareFetchResponse)
        if answer.error_code == ErrorCode.NONE:
            self.epoch = epoch + 1
        return answer

    def fetch(self, *batches: AcknowledgementBatch, **options: object) -> ShareFetchPartitionData:
        """The only partition's answer."""
        response = self.respond(*batches, **options)  # type: ignore[arg-type]  # as respond has them
        assert response.error_code == ErrorCode.NONE, response
        [[data]] = [topic.partitions for topic in response.responses]
        return data

    def acquire(self) -> list[tuple[int, int, int]]:
        """What is acquired; asks until something is."""
        found: list[tuple[int, int, int]] = []

        def is_some() -> bool:
            response = self.respond()
            assert response.error_code == ErrorCode.NONE, response
            for topic in response.responses:
                for data in topic.partitions:
                    assert data.error_code == ErrorCode.NONE, data
                    found.extend(
                        (each.first_offset, each.last_offset, each.delivery_count)
                        for each in data.acquired_records
                    )
            return bool(found)

        wait_until(is_some, timeout_s=WAIT_S, what="records are acquired")
        return found

    def acknowledge(
        self,
        *batches: AcknowledgementBatch,
        epoch: int | None = None,
        topic_id: Uuid | None = None,
        partition: int = 0,
    ) -> ShareAcknowledgeResponse:
        epoch = self.epoch if epoch is None else epoch
        asked = ShareRequestPartition(
            partition_index=partition, acknowledgement_batches=list(batches)
        )
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=epoch,
            topics=[ShareRequestTopic(topic_id=topic_id or self.topic_id, partitions=[asked])],
        )
        answer = self.wire.ask(request, 1, ShareAcknowledgeResponse)
        if answer.error_code == ErrorCode.NONE:
            self.epoch = epoch + 1
        return answer

    def fate(self, *batches: AcknowledgementBatch, **options: object) -> int:
        """The error code of the only partition."""
        response = self.acknowledge(*batches, **options)  # type: ignore[arg-type]  # as acknowledge has them
        assert response.error_code == ErrorCode.NONE, response
        [[data]] = [topic.partitions for topic in response.responses]
        return data.error_code


@pytest.fixture
def earliest(wire: WireClient, group: str) -> str:
    """A group that begins with the earliest records."""
    config = IncrementalAlterableConfig(name="share.auto.offset.reset", value="earliest")
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(resource_type=32, resource_name=group, configs=[config])
        ]
    )
    [answer] = wire.ask(request, 1, IncrementalAlterConfigsResponse).responses
    assert answer.error_code == ErrorCode.NONE, answer
    return group


@pytest.fixture
def member(
    cluster: DialogueCluster, wire: WireClient, earliest: str, topic: str
) -> Iterator[Member]:
    """Alone in the group; the topic has ten records in one batch."""
    assert produce(wire, topic, batch_of(*[b"v"] * 10)).error_code == ErrorCode.NONE
    member = Member(cluster, earliest, topic)
    yield member
    member.wire.close()


def test_records_are_acquired_and_acknowledged_in_every_way(member: Member) -> None:
    assert member.acquire() == [(0, 9, 1)]
    assert member.fate(batch(0, 3, ACCEPT)) == ErrorCode.NONE
    assert member.fate(batch(4, 7, ACCEPT, RELEASE, REJECT, ACCEPT)) == ErrorCode.NONE
    assert member.acquire() == [(5, 5, 2)]
    data = member.fetch(batch(5, 5, ACCEPT), batch(8, 9, ACCEPT))
    assert (data.error_code, data.acknowledge_error_code) == (ErrorCode.NONE, ErrorCode.NONE)


def test_sessions_are_counted(member: Member) -> None:
    member.acquire()
    expected = member.epoch
    wrong = member.respond(epoch=expected + 5)
    assert wrong.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    wrong_too = member.acknowledge(batch(0, 0, ACCEPT), epoch=expected + 5)
    assert wrong_too.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    first = member.acknowledge(batch(0, 0, ACCEPT), epoch=0)
    assert first.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.fate(batch(0, 0, ACCEPT), epoch=expected) == ErrorCode.NONE


def test_a_session_that_nobody_opened_is_not_found(member: Member) -> None:
    assert member.respond(epoch=3).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    answer = member.acknowledge(batch(0, 0, ACCEPT), epoch=3)
    assert answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    answer = member.acknowledge(batch(0, 0, ACCEPT), epoch=-1)
    assert answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_new_session_acknowledges_nothing(member: Member) -> None:
    assert member.respond(batch(0, 0, ACCEPT), epoch=0).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "batches",
    [
        [batch(4, 3, ACCEPT)],
        [batch(0, 4, ACCEPT), batch(3, 5, ACCEPT)],
        [batch(5, 6, ACCEPT), batch(0, 1, ACCEPT)],
        [batch(0, 4, ACCEPT, ACCEPT)],
        [batch(0, 4)],
        [batch(0, 0, 7)],
        [batch(0, 0, RENEW)],
        [batch(0, 12, ACCEPT)],
    ],
    ids=["backwards", "overlap", "order", "few", "none", "seven", "renewal", "behind"],
)
def test_what_makes_no_sense_is_an_invalid_request(
    member: Member, batches: list[AcknowledgementBatch]
) -> None:
    member.acquire()
    assert member.fate(*batches) == ErrorCode.INVALID_REQUEST


def test_what_is_not_held_any_more_is_refused(member: Member) -> None:
    member.acquire()
    assert member.fate(batch(2, 3, ACCEPT)) == ErrorCode.NONE
    assert member.fate(batch(1, 3, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
    assert member.fate(batch(1, 1, ACCEPT)) == ErrorCode.NONE, "nothing of it was taken"


def test_a_topic_that_is_not_there_is_told_of(member: Member) -> None:
    member.acquire()
    assert member.fate(batch(0, 0, ACCEPT), topic_id=NOBODY) == ErrorCode.UNKNOWN_TOPIC_ID


def test_whoever_closes_its_session_lets_go_of_what_it_holds(
    cluster: DialogueCluster, member: Member, earliest: str, topic: str
) -> None:
    assert member.acquire() == [(0, 9, 1)]
    assert member.fate(batch(0, 1, ACCEPT), epoch=-1) == ErrorCode.NONE
    assert member.respond(epoch=2).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    other = Member(cluster, earliest, topic)
    [(first, last, _)] = other.acquire()
    assert (first, last) == (2, 9)
    other.wire.close()


def test_a_connection_that_ends_lets_go_of_what_it_holds(
    cluster: DialogueCluster, member: Member, earliest: str, topic: str
) -> None:
    assert member.acquire() == [(0, 9, 1)]
    other = Member(cluster, earliest, topic)
    member.wire.close()
    [(first, last, _)] = other.acquire()
    assert (first, last) == (0, 9)
    other.wire.close()
