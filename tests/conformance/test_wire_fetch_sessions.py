"""Fetch sessions (KIP-227): a client says only what has changed, and so does the broker."""

from collections.abc import Mapping

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from odradek.protocol.messages.topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.conformance.dialogue import (
    FETCH,
    DialogueCluster,
    append,
    fetch_request,
    partitions_of,
    unique,
    values_of,
)
from tests.support.waiting import wait_until
from tests.support.wire import WireClient


class Session:
    """One fetch session of a topic's partitions, each step with the epoch that is due."""

    def __init__(self, wire: WireClient, topic: str, offsets: Mapping[int, int]) -> None:
        self.wire = wire
        self.topic = topic
        opened = self._ask(offsets, session_id=0, session_epoch=0)
        self.first = opened
        self.id = opened.session_id
        self.epoch = 0

    def step(
        self, offsets: Mapping[int, int] | None = None, *, forget: list[int] | None = None
    ) -> FetchResponse:
        """The next incremental fetch; `offsets` are added or changed."""
        self.epoch += 1
        return self._ask(
            offsets or {}, session_id=self.id, session_epoch=self.epoch, forget=forget or []
        )

    def ask(self, session_epoch: int) -> FetchResponse:
        """An incremental fetch of nothing new at that epoch."""
        return self._ask({}, session_id=self.id, session_epoch=session_epoch)

    def _ask(
        self,
        offsets: Mapping[int, int],
        *,
        session_id: int,
        session_epoch: int,
        forget: list[int] | None = None,
    ) -> FetchResponse:
        request = fetch_request(
            self.topic, offsets, session_id=session_id, session_epoch=session_epoch
        )
        if forget:
            request.forgotten_topics_data = [ForgottenTopic(topic=self.topic, partitions=forget)]
        return self.wire.ask(request, FETCH, FetchResponse)


def test_epoch_0_opens_a_session(wire: WireClient, topic: str) -> None:
    """B.1: "id 0/epoch 0 opens"; the first answer is a full one."""
    session = Session(wire, topic, {0: 0})
    assert session.first.error_code == ErrorCode.NONE
    assert session.id > 0
    assert partitions_of(session.first)[0].error_code == ErrorCode.NONE


def test_epoch_minus_1_asks_for_no_session(wire: WireClient, topic: str) -> None:
    """B.1: "epoch -1 closes or is sessionless"."""
    answer = wire.ask(fetch_request(topic, {0: 0}), FETCH, FetchResponse)
    assert (answer.error_code, answer.session_id) == (ErrorCode.NONE, 0)
    assert list(partitions_of(answer)) == [0]


def test_sessions_have_ids_of_their_own(wire: WireClient, topic: str) -> None:
    sessions = [Session(wire, topic, {0: 0}) for _ in range(5)]
    assert len({session.id for session in sessions}) == 5
    append(wire, topic, b"a")
    for session in sessions:
        assert values_of(partitions_of(session.step())[0]) == [b"a"]


def test_what_has_not_changed_is_left_out(wire: WireClient, cluster: DialogueCluster) -> None:
    """B.1: "incremental answers omit unchanged partitions"."""
    topic = cluster.new_topic_of_one_leader(3)
    session = Session(wire, topic, {0: 0, 1: 0, 2: 0})
    assert sorted(partitions_of(session.first)) == [0, 1, 2]
    assert session.step().responses == []
    append(wire, topic, b"a", partition=1)
    answer = session.step()
    assert (answer.error_code, answer.session_id) == (ErrorCode.NONE, session.id)
    assert list(partitions_of(answer)) == [1]
    assert values_of(partitions_of(answer)[1]) == [b"a"]


def test_a_partition_keeps_its_offset_until_the_client_moves_it(
    wire: WireClient, topic: str
) -> None:
    append(wire, topic, b"a")
    session = Session(wire, topic, {0: 0})
    assert values_of(partitions_of(session.step())[0]) == [b"a"]
    assert session.step({0: 1}).responses == []
    append(wire, topic, b"b")
    assert values_of(partitions_of(session.step())[0]) == [b"b"]


def test_partitions_are_added_and_forgotten(wire: WireClient, cluster: DialogueCluster) -> None:
    """B.1: "forgotten topics removed"."""
    topic = cluster.new_topic_of_one_leader(3)
    session = Session(wire, topic, {0: 0})
    append(wire, topic, b"a", partition=2)
    assert session.step().responses == []
    assert values_of(partitions_of(session.step({2: 0}))[2]) == [b"a"]
    assert session.step(forget=[2]).responses == []
    append(wire, topic, b"b", partition=0)
    assert list(partitions_of(session.step())) == [0]


def test_an_error_is_a_change(wire: WireClient, cluster: DialogueCluster, topic: str) -> None:
    """B.1: "must include error changes"."""
    session = Session(wire, topic, {0: 0})
    assert session.step().responses == []
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000)
    wire.ask(request, 6, DeleteTopicsResponse)
    answer = wait_until(lambda: partitions_of(session.step()), what="the error arrives")
    assert answer[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_unknown_partition_is_reported_in_a_session_too(wire: WireClient) -> None:
    session = Session(wire, unique("nowhere"), {0: 0})
    assert partitions_of(session.first)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert partitions_of(session.step())[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("epoch", [1, 3, 2**31 - 1])
def test_the_epoch_must_be_the_next_one(wire: WireClient, topic: str, epoch: int) -> None:
    """B.1: "INVALID_FETCH_SESSION_EPOCH (71)"."""
    session = Session(wire, topic, {0: 0})
    session.step()
    answer = session.ask(epoch)
    assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert answer.responses == []
    assert session.step().error_code == ErrorCode.NONE


def test_a_session_that_nobody_opened_is_not_found(wire: WireClient, topic: str) -> None:
    """B.1: "FETCH_SESSION_ID_NOT_FOUND (70)"."""
    request = fetch_request(topic, {}, session_id=123_456_789, session_epoch=1)
    answer = wire.ask(request, FETCH, FetchResponse)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (answer.session_id, answer.responses) == (0, [])


def test_a_closed_session_is_gone(wire: WireClient, topic: str) -> None:
    """B.1: "epoch -1 closes or is sessionless"."""
    session = Session(wire, topic, {0: 0})
    assert session.ask(-1).session_id == 0
    assert session.ask(1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_reopened_at_epoch_0_is_a_new_one(wire: WireClient, topic: str) -> None:
    """KIP-227: an id with epoch 0 closes the old session and opens another."""
    session = Session(wire, topic, {0: 0})
    request = fetch_request(topic, {0: 0}, session_id=session.id, session_epoch=0)
    answer = wire.ask(request, FETCH, FetchResponse)
    assert answer.error_code == ErrorCode.NONE
    assert answer.session_id not in (0, session.id)
    assert session.step().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_outlives_its_connection(
    cluster: DialogueCluster, wire: WireClient, topic: str
) -> None:
    """KIP-227: the session belongs to its id, so a client that reconnects goes on."""
    with cluster.connect() as other:
        session = Session(other, topic, {0: 0})
    append(wire, topic, b"a")
    session.wire = wire
    assert values_of(partitions_of(session.step())[0]) == [b"a"]


def test_a_session_of_names_cannot_go_on_with_ids(
    cluster: DialogueCluster, wire: WireClient, topic: str
) -> None:
    """B.1: "FETCH_SESSION_TOPIC_ID_ERROR (106)"."""
    session = Session(wire, topic, {0: 0})
    request = FetchRequest(
        session_id=session.id,
        session_epoch=1,
        topics=[
            FetchTopic(
                topic_id=cluster.topic_id(topic),
                partitions=[FetchPartition(partition_max_bytes=1000)],
            )
        ],
    )
    answer = wire.ask(request, 13, FetchResponse)
    assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_an_incremental_fetch_waits_and_wakes(
    cluster: DialogueCluster, wire: WireClient, topic: str
) -> None:
    session = Session(wire, topic, {0: 0})
    request = fetch_request(topic, {}, max_wait_ms=60_000, session_id=session.id, session_epoch=1)
    wire.post(request, FETCH)
    assert wire.is_silent(0.05)
    with cluster.connect() as other:
        append(other, topic, b"wake")
    assert values_of(partitions_of(wire.receive(FetchResponse))[0]) == [b"wake"]
