"""Fetch sessions as clients see them (KIP-227): incremental responses and errors."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from odradek.node.bus.messages import DeleteRecords
from odradek.node.router.handlers.fetch import handle_fetch
from odradek.node.worker.turn_requests import RouterState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchResponse, ForgottenTopic
from tests.support.controller_harness import topic_id
from tests.support.fetching import (
    NEWEST,
    answers,
    bases,
    bytes_of,
    fetch_harness,
    order,
    request,
    waiting,
)
from tests.support.router_harness import RouterHarness
from tests.support.stores import NOW_MS, batch_of

BY_NAME = 12


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def harness(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> Iterator[RouterHarness]:
    with fetch_harness(tmp_path, loop) as harness:
        yield harness


class Session:
    """A client with a session: `poll` names only changed partitions."""

    def __init__(self, harness: RouterHarness, offsets: Mapping[int, int], **options: int) -> None:
        self._room = harness
        self._options = options
        self.first = harness.call(
            handle_fetch,
            request(offsets, session_epoch=0, **options),  # type: ignore[arg-type]  # ints
            NEWEST,
        )
        assert self.first.error_code == ErrorCode.NONE
        self.id, self.epoch = self.first.session_id, 0

    def poll(
        self, offsets: Mapping[int, int] | None = None, *, forget: tuple[int, ...] = ()
    ) -> FetchResponse:
        self.epoch += 1
        asked = request(
            offsets or {},
            session_id=self.id,
            session_epoch=self.epoch,
            **self._options,  # type: ignore[arg-type]  # ints
        )
        if forget:
            asked.forgotten_topics_data = [
                ForgottenTopic(topic_id=topic_id(1), partitions=list(forget))
            ]
        response = self._room.call(handle_fetch, asked, NEWEST)
        assert response.session_id == (self.id if not response.error_code else 0)
        return response


def test_a_new_session_gets_a_full_response_and_then_changes(harness: RouterHarness) -> None:
    harness.append("t", batch_of(2))
    session = Session(harness, {0: 0, 1: 0, 2: 0})
    assert session.id > 0
    assert order(session.first) == [0, 1, 2]
    assert order(session.poll({0: 2})) == []
    harness.append("t", batch_of(1), partition=1)
    second = session.poll()
    assert order(second) == [1]
    assert bases(answers(second)[1]) == [0]


def test_records_come_again_until_the_client_advances(harness: RouterHarness) -> None:
    harness.append("t", batch_of(2))
    session = Session(harness, {0: 0})
    assert bases(answers(session.poll())[0]) == [0]
    assert order(session.poll({0: 2})) == []


def test_a_changed_log_start_offset_is_sent_without_records(harness: RouterHarness) -> None:
    harness.append("t", batch_of(2))
    session = Session(harness, {0: 2})
    assert order(session.poll()) == []
    store, number = harness.place("t")
    harness.turns.run([(RouterState(), DeleteRecords(1, store, number, 2))], NOW_MS)
    data = answers(session.poll())[0]
    assert (data.log_start_offset, bytes_of(data)) == (2, b"")
    assert order(session.poll()) == []


def test_an_error_is_sent_and_its_end_too(harness: RouterHarness) -> None:
    session = Session(harness, {0: 5, 1: 0})
    assert answers(session.first)[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert answers(session.poll())[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert answers(session.poll({0: 0}))[0].error_code == ErrorCode.NONE
    assert order(session.poll()) == []


def test_forgotten_partitions_are_not_fetched(harness: RouterHarness) -> None:
    session = Session(harness, {0: 0, 1: 0})
    harness.append("t", batch_of())
    harness.append("t", batch_of(), partition=1)
    assert order(session.poll(forget=(0,))) == [1]
    assert order(session.poll({1: 1})) == []


def test_a_partition_that_returned_records_goes_to_the_end(harness: RouterHarness) -> None:
    """With room for one batch in a response, every partition has its turn."""
    for partition in range(3):
        harness.append("t", *[batch_of(1, size=1_000)] * 2, partition=partition)
    session = Session(harness, {0: 0, 1: 0, 2: 0}, max_bytes=1)
    offsets = dict.fromkeys(range(3), 0)

    def served(response: FetchResponse) -> int:
        (partition,) = (index for index, data in answers(response).items() if bytes_of(data))
        offsets[partition] += 1
        return partition

    turns = [served(session.first)]
    for _ in range(5):
        turns.append(served(session.poll({turns[-1]: offsets[turns[-1]]})))
    assert sorted(turns[:3]) == [0, 1, 2]
    assert turns[3:] == turns[:3]


def test_an_incremental_fetch_waits_for_all_partitions_of_the_session(
    harness: RouterHarness,
) -> None:
    session = Session(harness, {0: 0, 1: 0})
    session.epoch += 1
    asked = request({}, session_id=session.id, session_epoch=session.epoch, max_wait_ms=60_000)
    pending = waiting(harness, asked)
    harness.append("t", batch_of(), partition=1)
    assert order(pending.response()) == [1]


def test_an_invalid_session_or_epoch_is_refused_and_changes_nothing(harness: RouterHarness) -> None:
    session = Session(harness, {0: 0})
    for session_id, epoch, code in (
        (session.id + 1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (session.id, 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ):
        asked = request({}, session_id=session_id, session_epoch=epoch)
        response = harness.call(handle_fetch, asked, NEWEST)
        assert (response.error_code, response.session_id) == (code, 0)
        assert response.responses == []
    asked = request({}, session_id=session.id, session_epoch=1)
    response = harness.call(handle_fetch, asked, BY_NAME)
    assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert order(session.poll()) == []


def test_without_free_slots_the_response_is_full_and_sessionless(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    slots = {"max.incremental.fetch.session.cache.slots": "1"}
    harness = RouterHarness(tmp_path, static=slots, loop=loop)
    harness.controller.has("t", 1, 2)
    harness.follow()
    assert Session(harness, {0: 0}).id > 0
    late = Session(harness, {0: 0, 1: 0})
    assert late.id == 0
    assert order(late.first) == [0, 1]
    harness.close()
