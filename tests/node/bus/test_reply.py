"""Replies: coroutines are resumed in place, exactly once, and may await asyncio futures."""

import asyncio

import pytest

from odradek.node.bus import reply as reply_module
from odradek.node.bus.reply import (
    MeasuredDrive,
    Reply,
    TracedReply,
    TraceScope,
    WorkMeter,
    drive,
    start_coroutine,
)
from odradek.node.bus.request_trace import RequestTrace


class _Ended:
    """Records how a driven coroutine ended."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, BaseException | None]] = []

    def __call__(self, value: object, error: BaseException | None) -> None:
        self.calls.append((value, error))


def test_a_coroutine_that_does_not_wait_ends_in_the_call() -> None:
    async def answer() -> int:
        return 7

    ended = _Ended()
    drive(answer(), ended)
    assert ended.calls == [(7, None)]


def test_reply_resumes_the_coroutine_in_the_turn_that_resolves_it() -> None:
    reply: Reply[str] = Reply()

    async def wait() -> str:
        return "got " + await reply

    ended = _Ended()
    drive(wait(), ended)
    assert ended.calls == []
    reply.resolve("it")
    assert ended.calls == [("got it", None)]


def test_awaiting_a_reply_that_is_done_does_not_wait() -> None:
    reply: Reply[int] = Reply()
    reply.resolve(3)

    async def wait() -> int:
        return await reply

    ended = _Ended()
    drive(wait(), ended)
    assert ended.calls == [(3, None)]


def test_second_value_is_ignored() -> None:
    reply: Reply[int] = Reply()
    reply.resolve(1)
    reply.resolve(2)
    reply.fail(ValueError())
    assert reply.result() == 1


def test_failure_is_raised_where_it_is_awaited() -> None:
    reply: Reply[int] = Reply()

    async def wait() -> str:
        try:
            await reply
        except LookupError as error:
            return str(error)
        return "nothing"

    ended = _Ended()
    drive(wait(), ended)
    reply.fail(LookupError("gone"))
    assert ended.calls == [("gone", None)]


def test_error_of_the_coroutine_reaches_finish_once() -> None:
    reply: Reply[int] = Reply()

    async def wait() -> None:
        await reply
        raise RuntimeError("broken")

    ended = _Ended()
    drive(wait(), ended)
    reply.resolve(0)
    ((value, error),) = ended.calls
    assert value is None
    assert isinstance(error, RuntimeError)


def test_replies_awaited_in_turn_arrive_in_any_order() -> None:
    replies = [Reply[int]() for _ in range(3)]

    async def wait() -> list[int]:
        return [await reply for reply in replies]

    ended = _Ended()
    drive(wait(), ended)
    replies[2].resolve(2)
    replies[0].resolve(0)
    assert ended.calls == []
    replies[1].resolve(1)
    assert ended.calls == [([0, 1, 2], None)]


def test_futures_and_sleeps_of_asyncio_can_be_awaited() -> None:
    async def main() -> object:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[object] = loop.create_future()
        value: asyncio.Future[int] = loop.create_future()

        async def handler() -> int:
            await asyncio.sleep(0)
            return await value + 1

        drive(handler(), lambda result, error: done.set_result(error or result))
        loop.call_soon(value.set_result, 41)
        return await done

    assert asyncio.run(main()) == 42


def test_the_result_after_a_failure_raises_the_error() -> None:
    reply: Reply[int] = Reply()
    reply.fail(OSError("no"))
    with pytest.raises(OSError, match="no"):
        reply.result()


def test_a_started_coroutine_runs_at_once_and_its_reply_gets_what_it_returns() -> None:
    source: Reply[int] = Reply()

    async def twice() -> int:
        return 2 * await source

    async def failing() -> int:
        raise ValueError("no")

    doubled = start_coroutine(twice())
    assert not doubled.is_done
    source.resolve(21)
    assert doubled.result() == 42
    with pytest.raises(ValueError, match="no"):
        start_coroutine(failing()).result()


def test_a_meter_counts_the_steps_of_its_coroutine_and_not_the_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 0

    def work(duration_ns: int) -> None:
        nonlocal now_ns
        now_ns += duration_ns

    monkeypatch.setattr(reply_module, "perf_counter_ns", lambda: now_ns)
    reply: Reply[None] = Reply()
    meter = WorkMeter(5)

    async def handle() -> None:
        work(100)
        await reply
        work(30)

    at_the_end: list[int] = []
    MeasuredDrive(handle(), lambda _value, _error: at_the_end.append(meter.spent_ns()), meter)
    work(10_000)
    reply.resolve(None)
    assert at_the_end == [135]
    assert meter.spent_ns() == 135


def test_a_meter_does_not_count_another_request_that_is_resumed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 0

    def work(duration_ns: int) -> None:
        nonlocal now_ns
        now_ns += duration_ns

    monkeypatch.setattr(reply_module, "perf_counter_ns", lambda: now_ns)
    reply: Reply[None] = Reply()
    waiting, resuming = WorkMeter(), WorkMeter()

    async def wait() -> None:
        work(1)
        await reply
        work(1_000)

    async def resume() -> None:
        work(10)
        reply.resolve(None)
        work(20)

    MeasuredDrive(wait(), lambda _value, _error: None, waiting)
    MeasuredDrive(resume(), lambda _value, _error: None, resuming)
    assert waiting.spent_ns() == 1_001
    assert resuming.spent_ns() == 30


def test_the_meter_of_the_request_that_is_worked_for_is_known() -> None:
    outer, inner = WorkMeter(), WorkMeter()
    known: list[WorkMeter | None] = []

    async def handle() -> None:
        known.append(WorkMeter.current())

    async def other() -> None:
        MeasuredDrive(handle(), lambda _value, _error: None, inner)
        known.append(WorkMeter.current())

    MeasuredDrive(other(), lambda _value, _error: None, outer)
    assert known == [inner, outer]
    assert WorkMeter.current() is None
    before = outer.spent_ns()
    outer.add(7)
    assert outer.spent_ns() == before + 7


def test_a_thread_works_for_one_trace_at_a_time() -> None:
    """A request that is resumed within another one has its own trace, or none."""
    inner_reply: Reply[int] = Reply()
    outer_reply: Reply[int] = Reply()
    seen: list[tuple[str, object]] = []

    async def inner() -> None:
        await inner_reply
        seen.append(("inner", RequestTrace.current))

    async def helper() -> None:
        await outer_reply
        seen.append(("helper", RequestTrace.current))

    async def outer() -> None:
        started = start_coroutine(helper())
        seen.append(("outer", RequestTrace.current))
        inner_reply.resolve(1)
        seen.append(("outer", RequestTrace.current))
        await started

    trace = RequestTrace("outer", 0, lambda _: None)
    MeasuredDrive(inner(), lambda _value, _error: None, TraceScope(None))
    MeasuredDrive(outer(), lambda _value, _error: None, TraceScope(trace, WorkMeter()))
    assert RequestTrace.current is None
    outer_reply.resolve(1)
    assert RequestTrace.current is None
    assert seen == [("outer", trace), ("inner", None), ("outer", trace), ("helper", trace)]


def test_a_traced_reply_is_a_span_until_it_is_resolved() -> None:
    trace = RequestTrace("request", 0, lambda _: None)
    resumed: list[int] = []
    reply: TracedReply[int] = TracedReply(
        trace, "worker_request", {"worker": "worker-0"}, lambda value: resumed.append(-value)
    )

    async def wait() -> None:
        resumed.append(await reply)

    drive(wait(), lambda _value, _error: None)
    assert trace.spans[reply.span].end_ns == 0
    reply.resolve(7)
    assert resumed == [-7, 7]
    assert trace.spans[reply.span].end_ns >= trace.spans[reply.span].start_ns > 0
