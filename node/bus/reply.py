"""Replies of other processes that a handler awaits, without an asyncio task.

A handler is a coroutine. Most requests are answered at once, the others wait once for another
process. An asyncio task for each request would cost more than the request. `drive` runs a coroutine
at once and in place. If it awaits a `Reply`, it is resumed in the iteration of the loop in which
the value arrives. It may await asyncio futures, too. One invariant: a coroutine is resumed exactly
once for each await, by what it awaits, on the loop's thread.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter_ns
from typing import Any, Generic, Protocol, TypeVar

from odradek.node.bus.request_trace import RequestTrace

T = TypeVar("T")


class Reply(Generic[T]):
    """A value that arrives once. At most one coroutine awaits it; `resolve` resumes it in place."""

    __slots__ = ("_error", "_resume", "_value", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._resume: Callable[[], None] | None = None

    def resolve(self, value: T) -> None:
        """Set the value and resume the waiting coroutine. Ignored if it is done already."""
        if self.is_done:
            return
        self.is_done = True
        self._value = value
        resume = self._resume
        if resume is not None:
            self._resume = None
            resume()

    def fail(self, error: BaseException) -> None:
        """Set an exception instead of a value."""
        if not self.is_done:
            self._error = error
            self.resolve(None)  # type: ignore[arg-type]  # result() raises the error

    def on_done(self, resume: Callable[[], None]) -> None:
        """Call `resume` when it is done: at once if it is already."""
        if self.is_done:
            resume()
        else:
            self._resume = resume

    def result(self) -> T:
        """The value. Raises the exception of `fail`. Only when `is_done`."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # resolve() was given a T

    def __await__(self) -> Generator[Any, None, T]:
        if not self.is_done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # resolve() was given a T


class TracedReply(Reply[T]):
    """A reply that is a span of the trace for which the thread works. `on_resolved` is called
    before the one that waits is resumed."""

    __slots__ = ("_on_resolved", "_trace", "span")

    def __init__(
        self,
        trace: RequestTrace,
        name: str,
        attributes: dict[str, str] | None = None,
        on_resolved: Callable[[T], object] | None = None,
    ) -> None:
        super().__init__()
        self._trace = trace
        self._on_resolved = on_resolved
        self.span = trace.begin(name, attributes=attributes)

    def resolve(self, value: T) -> None:
        if not self.is_done:
            self._trace.end(self.span)
            if self._on_resolved is not None:
                self._on_resolved(value)
        super().resolve(value)


class drive(Generic[T]):
    """Run `coroutine` now. When it has ended, call `finish` exactly once, with `(value, None)` or
    `(None, error)`, in the same iteration of the loop."""

    __slots__ = ("_coroutine", "_finish")

    def __init__(
        self,
        coroutine: Coroutine[Any, None, T],
        finish: Callable[[T | None, BaseException | None], None],
    ) -> None:
        self._coroutine = coroutine
        self._finish = finish
        self._step()

    def _step(self) -> None:
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as stop:
            self._finish(stop.value, None)
        except BaseException as error:
            self._finish(None, error)
            if not isinstance(error, Exception):
                raise
        else:
            if isinstance(awaited, Reply):
                awaited.on_done(self._step)
            elif isinstance(awaited, asyncio.Future):
                # A future sets this flag when it is awaited. A task resets it in the same way.
                awaited._asyncio_future_blocking = False
                awaited.add_done_callback(self._resume_from_future)
            else:
                asyncio.get_running_loop().call_soon(self._step)

    def _resume_from_future(self, _future: "asyncio.Future[Any]") -> None:
        self._step()


class WorkMeter:
    """How long the thread works for one request: between `begin` and `end`, and without what it
    does meanwhile for other requests that have a meter."""

    __slots__ = ("_began_ns", "_others_before_ns", "_outer", "_spent_ns")

    _nested_ns = 0
    """Of all meters: the time of those that ended within the one that runs."""
    _running: "WorkMeter | None" = None

    def __init__(self, spent_ns: int = 0) -> None:
        self._spent_ns = spent_ns
        self._began_ns = self._others_before_ns = 0
        self._outer: WorkMeter | None = None

    @staticmethod
    def current() -> "WorkMeter | None":
        """That of the request for which the thread works now, if it has one."""
        return WorkMeter._running

    def add(self, spent_ns: int) -> None:
        """Another thread has worked so long for the request."""
        self._spent_ns += spent_ns

    def begin(self) -> None:
        self._outer, WorkMeter._running = WorkMeter._running, self
        self._others_before_ns = WorkMeter._nested_ns
        WorkMeter._nested_ns = 0
        self._began_ns = perf_counter_ns()

    def end(self) -> None:
        WorkMeter._running, self._outer = self._outer, None
        elapsed_ns = perf_counter_ns() - self._began_ns
        self._spent_ns += elapsed_ns - WorkMeter._nested_ns
        WorkMeter._nested_ns = self._others_before_ns + elapsed_ns
        self._began_ns = 0

    def spent_ns(self) -> int:
        """Up to now, also while it runs."""
        if not self._began_ns:
            return self._spent_ns
        return self._spent_ns + perf_counter_ns() - self._began_ns - WorkMeter._nested_ns


class TraceScope:
    """While a coroutine runs, the thread works for this trace, or for none; with a meter, the time
    is measured as well."""

    __slots__ = ("_meter", "_outer", "_trace")

    def __init__(self, trace: RequestTrace | None, meter: WorkMeter | None = None) -> None:
        self._trace = trace
        self._meter = meter
        self._outer: RequestTrace | None = None

    def begin(self) -> None:
        trace = self._trace
        self._outer, RequestTrace.current = RequestTrace.current, trace
        if trace is not None:
            trace.step_ns = perf_counter_ns()
        if self._meter is not None:
            self._meter.begin()

    def end(self) -> None:
        if self._meter is not None:
            self._meter.end()
        RequestTrace.current, self._outer = self._outer, None


class StepObserver(Protocol):
    """Called before and after each step of a coroutine."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


class MeasuredDrive(drive[T]):
    """`drive` with a meter or a trace. Each step is observed, with the call of `finish`."""

    __slots__ = ("_meter",)

    def __init__(
        self,
        coroutine: Coroutine[Any, None, T],
        finish: Callable[[T | None, BaseException | None], None],
        meter: StepObserver,
    ) -> None:
        self._meter = meter
        super().__init__(coroutine, finish)

    def _step(self) -> None:
        self._meter.begin()
        try:
            super()._step()
        finally:
            self._meter.end()


def start_coroutine(coroutine: Coroutine[Any, Any, T]) -> Reply[T]:
    """Run it now. The reply gets its result. What it does is part of the trace that is current."""
    reply: Reply[T] = Reply()

    def finish(value: T | None, error: BaseException | None) -> None:
        if error is not None:
            reply.fail(error)
        else:
            reply.resolve(value)  # type: ignore[arg-type]  # without an error there is a value

    trace = RequestTrace.current
    if trace is None:
        drive(coroutine, finish)
    else:
        MeasuredDrive(coroutine, finish, TraceScope(trace))
    return reply
