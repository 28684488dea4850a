"""KIP-227 sessions: epochs, forgetting, what an incremental answer leaves out, the bound and its
eviction."""

import asyncio
import itertools

from odradek.node.router.fetch_sessions import (
    EVICTION_IDLE_MS,
    FetchContext,
    FetchSessionCache,
    requested_partitions,
    requested_partitions_cooperatively,
    update_if_changed,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

VERSION = 12


def _sessions(slots: int = 10) -> FetchSessionCache:
    ids = itertools.count(101)
    return FetchSessionCache(lambda: next(ids), lambda: slots)


def _request(
    *partitions: tuple[str, int, int],
    session_id: int = 0,
    epoch: int = -1,
    forgotten: tuple[tuple[str, int], ...] = (),
) -> FetchRequest:
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchTopic(
                topic=name, partitions=[FetchPartition(partition=index, fetch_offset=offset)]
            )
            for name, index, offset in partitions
        ],
        forgotten_topics_data=[
            ForgottenTopic(topic=name, partitions=[index]) for name, index in forgotten
        ],
    )


def context_of(
    sessions: FetchSessionCache, request: FetchRequest, version: int, now_ms: int
) -> FetchContext:
    return sessions.new_context(request, version, requested_partitions(request, version), now_ms)


def test_a_request_names_each_partition_once() -> None:
    request = _request(*(("a", number % 150, number) for number in range(300)))
    long = asyncio.run(requested_partitions_cooperatively(request, VERSION))
    for requested in (long, requested_partitions(request, VERSION)):
        assert [(each.partition, each.fetch_offset) for each in requested] == [
            (number, number + 150) for number in range(150)
        ]
    few = _request(("a", 0, 5), ("b", 1, 6))
    assert asyncio.run(requested_partitions_cooperatively(few, VERSION)) == requested_partitions(
        few, VERSION
    )


def test_epoch_minus_one_fetches_without_a_session() -> None:
    sessions = _sessions()
    fetch = context_of(sessions, _request(("a", 0, 5)), VERSION, 0)
    assert (fetch.session_id, fetch.is_incremental, len(sessions)) == (0, False, 0)
    assert [(p.topic, p.fetch_offset) for p in fetch.partitions] == [("a", 5)]


def test_epoch_zero_creates_a_session_and_the_next_fetch_has_all_its_partitions() -> None:
    sessions = _sessions()
    opened = context_of(sessions, _request(("a", 0, 5), ("b", 1, 6), epoch=0), VERSION, 0)
    assert opened.session_id == 101
    assert not opened.is_incremental
    follow = context_of(sessions, _request(("b", 1, 9), session_id=101, epoch=1), VERSION, 1)
    assert follow.is_incremental
    assert [(p.topic, p.fetch_offset) for p in follow.partitions] == [("a", 5), ("b", 9)]


def test_forgotten_partitions_are_not_served_again() -> None:
    sessions = _sessions()
    context_of(sessions, _request(("a", 0, 5), ("b", 1, 6), epoch=0), VERSION, 0)
    follow = context_of(
        sessions, _request(session_id=101, epoch=1, forgotten=(("a", 0),)), VERSION, 1
    )
    assert [p.topic for p in follow.partitions] == ["b"]


def test_a_wrong_epoch_and_an_unknown_session_are_different_errors() -> None:
    sessions = _sessions()
    context_of(sessions, _request(("a", 0, 5), epoch=0), VERSION, 0)
    wrong = context_of(sessions, _request(session_id=101, epoch=2), VERSION, 0)
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    unknown = context_of(sessions, _request(session_id=7, epoch=1), VERSION, 0)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_with_names_cannot_continue_with_topic_ids() -> None:
    sessions = _sessions()
    context_of(sessions, _request(("a", 0, 5), epoch=0), 12, 0)
    mixed = context_of(sessions, _request(session_id=101, epoch=1), 13, 0)
    assert mixed.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_final_epoch_closes_the_session() -> None:
    sessions = _sessions()
    context_of(sessions, _request(("a", 0, 5), epoch=0), VERSION, 0)
    context_of(sessions, _request(("a", 0, 5), session_id=101, epoch=-1), VERSION, 0)
    assert len(sessions) == 0


def test_full_cache_answers_without_a_session_until_one_has_been_idle_long_enough() -> None:
    sessions = _sessions(slots=1)
    context_of(sessions, _request(("a", 0, 5), epoch=0), VERSION, 0)
    refused = context_of(sessions, _request(("b", 0, 5), epoch=0), VERSION, EVICTION_IDLE_MS - 1)
    assert refused.session_id == 0
    taken = context_of(sessions, _request(("b", 0, 5), epoch=0), VERSION, EVICTION_IDLE_MS)
    assert taken.session_id != 0
    gone = context_of(sessions, _request(session_id=101, epoch=1), VERSION, EVICTION_IDLE_MS)
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_epoch_wraps_to_one() -> None:
    sessions = _sessions()
    opened = context_of(sessions, _request(("a", 0, 5), epoch=0), VERSION, 0)
    assert opened.session is not None
    opened.session.epoch = 2**31 - 1
    last = context_of(sessions, _request(session_id=101, epoch=2**31 - 1), VERSION, 0)
    assert last.error_code == ErrorCode.NONE
    wrapped = context_of(sessions, _request(session_id=101, epoch=1), VERSION, 0)
    assert wrapped.error_code == ErrorCode.NONE


def test_an_incremental_response_has_only_changed_partitions() -> None:
    sessions = _sessions()
    fetch = context_of(sessions, _request(("a", 0, 5), epoch=0), VERSION, 0)
    wanted = fetch.partitions[0]

    def news(has_records: bool, error: int, high_watermark: int, log_start: int) -> bool:
        return update_if_changed(
            wanted,
            has_records=has_records,
            error_code=error,
            high_watermark=high_watermark,
            log_start_offset=log_start,
        )

    assert news(False, 0, 10, 0)
    assert not news(False, 0, 10, 0)
    assert news(True, 0, 10, 0)
    assert news(False, 0, 11, 0)
    assert news(False, 0, 11, 3)
    assert news(False, 6, 11, 3)
    assert news(False, 6, 11, 3), "an error is repeated until it is gone"
    assert news(False, 0, 11, 3), "its end is told once"
    assert not news(False, 0, 11, 3)


def test_what_was_sent_is_kept_when_the_fetch_offset_changes() -> None:
    sessions = _sessions()
    opened = context_of(sessions, _request(("a", 0, 5), epoch=0), VERSION, 0)
    update_if_changed(
        opened.partitions[0],
        has_records=True,
        error_code=0,
        high_watermark=9,
        log_start_offset=0,
    )
    follow = context_of(sessions, _request(("a", 0, 9), session_id=101, epoch=1), VERSION, 1)
    assert not update_if_changed(
        follow.partitions[0],
        has_records=False,
        error_code=0,
        high_watermark=9,
        log_start_offset=0,
    )
