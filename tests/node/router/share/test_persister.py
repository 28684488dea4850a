"""The share persister: local and remote shards, retries, and restarts of the shard."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.coordinator.share.requests import (
    NO_STATE_SUMMARY,
    DeleteShareState,
    InitializeShareState,
    PersistedShareState,
    ReadShareState,
    ShareKey,
    ShareStateSummary,
    WriteShareState,
)
from odradek.coordinator.share.state_batches import PersisterStateBatch, RecordState
from odradek.node.bus.reply import start_coroutine
from odradek.node.router.share.persister import SharePersister
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.share_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from tests.support.share_harness import GROUP, TOPIC, ShareHarness

BATCHES = (
    PersisterStateBatch(3, 4, RecordState.ACKNOWLEDGED, 1),
    PersisterStateBatch(6, 6, RecordState.AVAILABLE, 2),
)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShareHarness]:
    with ShareHarness(tmp_path) as harness:
        yield harness


@pytest.fixture(params=["here", "there"])
def states(harness: ShareHarness, request: pytest.FixtureRequest) -> SharePersister:
    found: SharePersister = getattr(harness, request.param)
    return found


def refusal(harness: ShareHarness, *reply: object) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        harness.result(*reply)  # type: ignore[arg-type]  # of whatever
    return raised.value.code


def test_a_written_state_is_read(harness: ShareHarness, states: SharePersister) -> None:
    name = ShareKey(GROUP, harness.topic_id, 1)
    harness.result(states.call(InitializeShareState(name, state_epoch=1, start_offset=0)))
    assert harness.result(states.call(ReadShareState(name, 0))) == PersistedShareState(1, 0, ())
    harness.result(
        states.call(
            WriteShareState(
                name,
                state_epoch=1,
                leader_epoch=0,
                start_offset=2,
                delivery_complete_count=3,
                batches=BATCHES,
            )
        )
    )
    assert harness.result(states.call(ReadShareState(name, 0))) == PersistedShareState(
        1, 2, BATCHES
    )
    expected = {
        (harness.topic_id, 1): ShareStateSummary(1, 0, 2, 3),
        (harness.topic_id, 2): NO_STATE_SUMMARY,
    }
    assert (
        harness.result(
            start_coroutine(states.summaries(GROUP, [(harness.topic_id, 1), (harness.topic_id, 2)]))
        )
        == expected
    )
    harness.result(states.call(DeleteShareState(name)))
    assert refusal(harness, states.call(ReadShareState(name, 0))) == ErrorCode.INVALID_REQUEST


def test_both_nodes_read_the_same_state(harness: ShareHarness) -> None:
    name = ShareKey(GROUP, harness.topic_id, 0)
    harness.result(harness.there.call(InitializeShareState(name, state_epoch=1, start_offset=5)))
    harness.result(
        harness.here.call(
            WriteShareState(
                name,
                state_epoch=1,
                leader_epoch=0,
                start_offset=6,
                delivery_complete_count=0,
                batches=BATCHES[1:],
            )
        )
    )
    assert harness.result(harness.there.call(ReadShareState(name, 0))) == PersistedShareState(
        1, 6, BATCHES[1:]
    )


def test_errors_of_the_shard_are_raised_with_their_messages(
    harness: ShareHarness, states: SharePersister
) -> None:
    name = ShareKey(GROUP, harness.topic_id, 1)
    harness.result(states.call(InitializeShareState(name, state_epoch=2, start_offset=0)))
    harness.result(states.call(ReadShareState(name, 4)))
    assert refusal(harness, states.call(ReadShareState(name, 3))) == ErrorCode.FENCED_LEADER_EPOCH
    assert (
        refusal(
            harness,
            states.call(
                WriteShareState(
                    name,
                    state_epoch=2,
                    leader_epoch=3,
                    start_offset=1,
                    delivery_complete_count=0,
                    batches=(),
                )
            ),
        )
        == ErrorCode.FENCED_LEADER_EPOCH
    )
    with pytest.raises(ApiError, match="state epoch is 2") as raised:
        harness.result(
            states.call(
                WriteShareState(
                    name,
                    state_epoch=1,
                    leader_epoch=4,
                    start_offset=1,
                    delivery_complete_count=0,
                    batches=(),
                )
            )
        )
    assert raised.value.code == ErrorCode.FENCED_STATE_EPOCH
    stranger = ShareKey(GROUP, b"\1" * 16, 0)
    expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (
        refusal(harness, states.call(InitializeShareState(stranger, state_epoch=1, start_offset=0)))
        == expected
    )
    assert harness.result(start_coroutine(states.summaries(GROUP, [stranger[1:]]))) == {
        stranger[1:]: expected
    }


def test_summaries_of_no_partitions_are_empty(harness: ShareHarness) -> None:
    assert harness.result(start_coroutine(harness.here.summaries(GROUP, []))) == {}


def test_writes_of_one_turn_are_one_request(harness: ShareHarness) -> None:
    other = harness.have_topic("other", 2, 2)
    names = [ShareKey(GROUP, topic, at) for at in (1, 0) for topic in (harness.topic_id, other)]
    for name in names:
        harness.result(
            harness.there.call(InitializeShareState(name, state_epoch=1, start_offset=0))
        )
    harness.remote_link.asked.clear()
    replies = [
        harness.there.call(
            WriteShareState(
                name,
                state_epoch=1,
                leader_epoch=0,
                start_offset=at,
                delivery_complete_count=-1,
                batches=(),
            )
        )
        for at, name in enumerate([*names, *names], start=1)
    ]
    for reply in replies:
        harness.result(reply)
    [request] = harness.remote_link.asked
    assert isinstance(request, WriteShareGroupStateRequest)
    # Two writes of one share-partition stay two, in their order.
    assert sum(len(topic.partitions) for topic in request.topics) == 8
    for at, name in enumerate(names, start=5):
        assert harness.result(harness.there.call(ReadShareState(name, 0))).start_offset == at


def test_the_topic_is_created_when_it_is_first_needed(tmp_path: Path) -> None:
    with ShareHarness(tmp_path, has_states=False) as harness:
        name = ShareKey(GROUP, harness.topic_id, 1)
        first, second = (
            harness.here.call(InitializeShareState(name, state_epoch=1, start_offset=0)),
            harness.there.call(InitializeShareState(name, state_epoch=1, start_offset=0)),
        )
        harness.result(first)
        harness.result(second)
        assert harness.result(harness.here.call(ReadShareState(name, 0))) == PersistedShareState(
            1, 0, ()
        )


def test_a_lost_request_is_sent_again(harness: ShareHarness) -> None:
    name = ShareKey(GROUP, harness.topic_id, 1)
    harness.remote_link.lost_requests = 3
    harness.result(harness.there.call(InitializeShareState(name, state_epoch=1, start_offset=0)))
    assert len(harness.remote_link.asked) == 4


def test_a_request_whose_response_was_lost_is_repeated_safely(harness: ShareHarness) -> None:
    name = ShareKey(GROUP, harness.topic_id, 1)
    harness.remote_link.lost_answers = 2
    harness.result(harness.there.call(InitializeShareState(name, state_epoch=1, start_offset=0)))
    harness.remote_link.lost_answers = 2
    harness.result(
        harness.there.call(
            WriteShareState(
                name,
                state_epoch=1,
                leader_epoch=0,
                start_offset=2,
                delivery_complete_count=3,
                batches=BATCHES,
            )
        )
    )
    harness.remote_link.lost_answers = 1
    assert harness.result(harness.there.call(ReadShareState(name, 2))) == PersistedShareState(
        1, 2, BATCHES
    )
    assert [type(request) for request in harness.remote_link.asked[-2:]] == [
        ReadShareGroupStateRequest
    ] * 2


def test_an_acknowledged_write_survives_a_restart_of_the_router(harness: ShareHarness) -> None:
    name = ShareKey(GROUP, harness.topic_id, 2)
    harness.result(harness.there.call(InitializeShareState(name, state_epoch=1, start_offset=0)))
    harness.result(
        harness.there.call(
            WriteShareState(
                name,
                state_epoch=1,
                leader_epoch=0,
                start_offset=2,
                delivery_complete_count=3,
                batches=BATCHES,
            )
        )
    )
    harness.restart_router()
    # Asked while the shard loads.
    assert harness.result(harness.there.call(ReadShareState(name, 0))) == PersistedShareState(
        1, 2, BATCHES
    )
    assert harness.result(harness.here.call(ReadShareState(name, 0))) == PersistedShareState(
        1, 2, BATCHES
    )


def test_calls_wait_for_an_unreachable_worker(
    harness: ShareHarness, states: SharePersister
) -> None:
    name = ShareKey(GROUP, harness.topic_id, 0)
    harness.result(states.call(InitializeShareState(name, state_epoch=1, start_offset=0)))
    harness.bus.is_away = True
    reply = states.call(
        WriteShareState(
            name,
            state_epoch=1,
            leader_epoch=0,
            start_offset=2,
            delivery_complete_count=3,
            batches=BATCHES,
        )
    )
    harness.turn_loop(0.05)
    assert not reply.is_done
    harness.bus.come_back()
    harness.result(reply)


def test_a_closed_persister_does_not_retry(harness: ShareHarness) -> None:
    name = ShareKey(GROUP, harness.topic_id, 1)
    harness.remote_link.lost_requests = 1_000
    reply = harness.there.call(InitializeShareState(name, state_epoch=1, start_offset=0))
    harness.turn_loop(0.02)
    harness.there.close()
    assert refusal(harness, reply) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_states_of_a_deleted_topic_are_deleted(harness: ShareHarness) -> None:
    name = ShareKey(GROUP, harness.topic_id, 1)
    harness.result(harness.here.call(InitializeShareState(name, state_epoch=1, start_offset=0)))
    harness.drop_topic(TOPIC)
    assert (
        refusal(harness, harness.here.call(ReadShareState(name, 0)))
        == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    harness.restart_router()
    harness.loop.run_until_complete(asyncio.sleep(0.05))
    assert not any(len(shard.states) for shard in harness.shards())


def test_an_unknown_partition_fails_without_retries(
    harness: ShareHarness, states: SharePersister
) -> None:
    reply = states.call(ReadShareState(ShareKey(GROUP, harness.topic_id, 99), 0))
    harness.turn_loop(0.2)
    assert reply.is_done
    assert refusal(harness, reply) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_repeated_partition_is_requested_once(harness: ShareHarness) -> None:
    name = harness.topic_id, 0
    harness.result(start_coroutine(harness.there.summaries(GROUP, [name] * 5)))
    [request] = harness.remote_link.asked
    assert isinstance(request, ReadShareGroupStateSummaryRequest)
    [topic] = request.topics
    assert len(topic.partitions) == 1
