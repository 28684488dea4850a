"""The host of a shard on a real loop, with its log in memory: loading, turns, failures, timers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, ParamSpec

import pytest

from odradek.coordinator.group.requests import FetchOffsets
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.outcome import Answer, Command, ErrorReply
from odradek.coordinator.runtime import Shard, ShardRuntime, ShardState
from odradek.coordinator.transaction.requests import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkersWritten,
)
from odradek.coordinator.transaction.settings import TransactionSettings
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.node.router.shards.shard_host import ShardHost
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequestTopic,
    OffsetFetchResponseGroup,
)
from odradek.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from odradek.protocol.messages.transactions import EndTxnRequest, InitProducerIdRequest
from tests.support.memory_log import MemoryLog

P = ParamSpec("P")

DEADLINE_S = 5.0


def run(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run the test in its own event loop."""

    @wraps(test)
    def runner(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(DEADLINE_S):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return runner


class Stage:
    """A host, its log and its answers."""

    def __init__(
        self, log: MemoryLog, new_shard: Callable[[], Shard[Any]], batch_bytes_max: int
    ) -> None:
        loop = asyncio.get_running_loop()
        self.log = log
        self.answers: dict[int, Answer] = {}
        self.changed = asyncio.Event()
        self.next_id = 0
        self.host = ShardHost(
            name="shard",
            leader_epoch=0,
            shard_log=log,
            new_runtime=lambda: ShardRuntime(new_shard(), batch_bytes_max=batch_bytes_max),
            loop=loop,
            now_ms=lambda: int(loop.time() * 1000),
            deliver=self.hear,
        )

    def hear(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            assert answer.request_id not in self.answers, "answered twice"
            self.answers[answer.request_id] = answer
        self.changed.set()

    def ask(self, request: object, *, version: int = 3) -> int:
        self.next_id += 1
        self.host.execute(
            Command(
                request=request,
                request_id=self.next_id,
                api_version=version,
                client_id="client",
                client_host="/127.0.0.1",
                fresh_id=f"{self.next_id:04}",
            )
        )
        return self.next_id

    def commit(self, offset: int, *, group: str = "g") -> int:
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
        return self.ask(OffsetCommitRequest(group_id=group, topics=topics))

    async def answer(self, request_id: int) -> Answer:
        while request_id not in self.answers:
            self.changed.clear()
            await self.changed.wait()
        return self.answers[request_id]

    async def error_of_commit(self, request_id: int) -> ErrorCode:
        answer = await self.answer(request_id)
        if isinstance(answer, ErrorReply):
            return answer.error_code
        assert isinstance(answer.response, OffsetCommitResponse)
        return ErrorCode(answer.response.topics[0].partitions[0].error_code)

    async def committed(self, *, group: str = "g") -> int:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        answer = await self.answer(self.ask(FetchOffsets(group, topics)))
        assert not isinstance(answer, ErrorReply)
        assert isinstance(answer.response, OffsetFetchResponseGroup)
        return answer.response.topics[0].partitions[0].committed_offset

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - turns of the loop are what is waited for
            await asyncio.sleep(0)

    async def until_active(self) -> None:
        await self.until(lambda: self.host.is_active)

    async def until_queued(self, count: int) -> None:
        """Wait until the log has so many pending appends and barriers."""
        await self.until(lambda: len(self.log.queue) >= count)


@asynccontextmanager
async def staged(
    log: MemoryLog | None = None,
    settings: GroupSettings | None = None,
    *,
    batch_bytes_max: int = 1_000_000,
    new_shard: Callable[[], Shard[Any]] | None = None,
) -> AsyncIterator[Stage]:
    settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
    new_shard = new_shard or partial(GroupShard, settings)
    stage = Stage(log or MemoryLog(), new_shard, batch_bytes_max)
    stage.host.start()
    try:
        yield stage
    finally:
        stage.host.close()


@run
async def test_commits_of_one_turn_are_one_batch() -> None:
    async with staged() as stage:
        await stage.until_active()
        last = [stage.commit(offset, group=f"g{offset}") for offset in range(10)][-1]
        assert await stage.error_of_commit(last) == ErrorCode.NONE
        assert stage.log.batch_sizes == [10]


@run
async def test_the_end_of_a_transaction_and_the_begin_of_the_next_one_are_one_batch() -> None:
    new_shard = partial(TransactionShard, TransactionSettings())
    async with staged(new_shard=new_shard) as stage:
        await stage.until_active()

        async def done(request: object) -> None:
            assert not isinstance(await stage.answer(stage.ask(request)), ErrorReply)

        init = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
        await done(InitProducer(init, 7))
        add = AddPartitions("t", 7, 0, frozenset((("a", 0),)), client_version=1)
        end = EndTxnRequest(transactional_id="t", producer_id=7, producer_epoch=0, committed=True)
        await done(add)
        await done(EndTransaction(end, 1, -1))
        assert stage.log.batch_sizes == [1, 1, 1]
        told = stage.ask(MarkersWritten("t", 7, 0))
        await done(add)
        assert told in stage.answers
        assert stage.log.batch_sizes == [1, 1, 1, 2]
        await done(EndTransaction(end, 1, -1))
        await done(MarkersWritten("t", 7, 0))
        assert stage.log.batch_sizes == [1, 1, 1, 2, 1, 1]


@run
async def test_batches_are_pipelined_and_answered_in_order() -> None:
    async with staged() as stage:
        await stage.until_active()
        stage.log.is_serving = False
        first = stage.commit(1)
        await stage.until_queued(1)
        second = stage.commit(2)
        await stage.until_queued(2)
        assert stage.answers == {}
        stage.log.serve()
        assert await stage.error_of_commit(first) == ErrorCode.NONE
        assert await stage.error_of_commit(second) == ErrorCode.NONE
        assert await stage.committed() == 2


@run
async def test_the_log_is_loaded_in_slices() -> None:
    log = MemoryLog()
    async with staged(log) as stage:
        await stage.until_active()
        for offset in range(25):
            await stage.answer(stage.commit(offset))
    log.slice_count = 4
    async with staged(log) as stage:
        assert await stage.committed() == 24


@run
async def test_requests_wait_for_a_loading_shard() -> None:
    log = MemoryLog(is_serving=False)
    async with staged(log) as stage:
        commit = stage.commit(5)
        assert stage.answers == {}
        log.serve(and_stay=True)
        assert await stage.error_of_commit(commit) == ErrorCode.NONE


@run
async def test_requests_that_wait_too_long_fail_with_load_in_progress() -> None:
    log = MemoryLog(is_serving=False)
    async with staged(log) as stage:
        held = stage.commit(5)
        assert await stage.error_of_commit(held) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        later = stage.commit(6)
        assert stage.answers[later] == ErrorReply(later, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


@run
async def test_loading_continues_when_the_worker_has_the_partition() -> None:
    log = MemoryLog(is_serving=False)
    async with staged(log) as stage:
        log.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await stage.until_queued(1)
        log.serve(and_stay=True)
        assert await stage.committed() == -1


@run
async def test_after_a_lost_worker_the_shard_loads_what_was_written() -> None:
    async with staged() as stage:
        await stage.until_active()
        stage.log.is_serving = False
        commit = stage.commit(7)
        await stage.until_queued(1)
        stage.log.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER, is_written=True)
        assert await stage.error_of_commit(commit) == ErrorCode.NOT_COORDINATOR
        stage.log.serve(and_stay=True)
        assert await stage.committed() == 7


@run
async def test_a_refused_batch_is_reverted_without_a_reload() -> None:
    async with staged() as stage:
        await stage.until_active()
        assert await stage.error_of_commit(stage.commit(1)) == ErrorCode.NONE
        runtime = stage.host.runtime
        stage.log.is_serving = False
        commit = stage.commit(2)
        await stage.until_queued(1)
        stage.log.fail(ErrorCode.KAFKA_STORAGE_ERROR)
        assert await stage.error_of_commit(commit) == ErrorCode.NOT_COORDINATOR
        stage.log.serve(and_stay=True)
        assert await stage.committed() == 1
        assert stage.host.runtime is runtime


@pytest.mark.parametrize(
    "refusal", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR]
)
@run
async def test_batches_after_a_refused_batch_are_not_appended(refusal: ErrorCode) -> None:
    async with staged(batch_bytes_max=150) as stage:
        await stage.until_active()
        stage.log.refusals.append(refusal)
        commits = [stage.commit(offset) for offset in range(5)]
        for commit in commits:
            assert await stage.error_of_commit(commit) == ErrorCode.NOT_COORDINATOR
        assert await stage.committed() == -1
        assert stage.log.entries == []
        assert await stage.error_of_commit(stage.commit(9)) == ErrorCode.NONE
        assert await stage.committed() == 9


@run
async def test_an_unexpected_record_in_the_log_makes_the_shard_reload() -> None:
    async with staged() as stage:
        await stage.until_active()
        stage.log.entries.append((b"\x00\x63", None))
        commit = stage.commit(3)
        code = await stage.error_of_commit(commit)
        assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        # It was decided without what the record says, and is not written behind it.
        assert await stage.committed() == -1
        assert await stage.error_of_commit(stage.commit(4)) == ErrorCode.NONE


@run
async def test_a_failed_load_is_retried() -> None:
    log = MemoryLog()
    log.is_readable = False
    log.entries.append((b"\x00\x63", None))
    async with staged(log) as stage:
        await stage.until(lambda: stage.host.runtime.state is ShardState.FAILED)
        log.is_readable = True
        assert await stage.committed() == -1


@run
async def test_timers_fire() -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=20)
    async with staged(settings=settings) as stage:
        await stage.until_active()
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        answer = await stage.answer(stage.ask(request))
        assert not isinstance(answer, ErrorReply)
        assert isinstance(answer.response, JoinGroupResponse)
        assert answer.response.generation_id == 1


@run
async def test_close_fails_waiting_commands() -> None:
    log = MemoryLog(is_serving=False)
    async with staged(log) as stage:
        held = stage.commit(1)
        stage.host.close()
        assert await stage.error_of_commit(held) == ErrorCode.NOT_COORDINATOR


@run
async def test_a_shard_that_raises_is_reloaded() -> None:
    async with staged() as stage:
        await stage.until_active()
        assert await stage.error_of_commit(stage.commit(1)) == ErrorCode.NONE
        broken = stage.ask(object())
        answer = await stage.answer(broken)
        assert answer == ErrorReply(broken, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert await stage.committed() == 1


@run
async def test_loaded_records_are_committed_when_the_high_watermark_has_passed_them() -> None:
    log = MemoryLog()
    async with staged(log) as before:
        assert await before.error_of_commit(before.commit(7)) is ErrorCode.NONE
        assert await before.error_of_commit(before.commit(8)) is ErrorCode.NONE
    log.uncommitted_count = 1
    async with staged(log) as stage:
        await stage.until_active()
        assert await stage.committed() == 7
        log.uncommitted_count = 0
        await stage.until(lambda: not stage.host.runtime.has_uncommitted_load)
        assert await stage.committed() == 8
