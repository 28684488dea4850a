"""Answers that are not there yet, and the trampoline that carries a handler across them.

A handler is a coroutine. Most requests are answered without waiting and the rest wait once for
another process; a task of asyncio per request would cost more than the request. `drive` runs a
coroutine at once and in place; when it awaits a `Reply` the reply itself resumes it, in the same
turn in which the value arrives. Futures of asyncio may be awaited as well. One invariant: a
coroutine is resumed exactly once per await, by whatever it awaited, on the loop's thread.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

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
        """Deliver the value and run the waiting coroutine. A second one is ignored."""
        if self.is_done:
            return
        self.is_done = True
        self._value = value
        resume = self._resume
        if resume is not None:
            self._resume = None
            resume()

    def fail(self, error: BaseException) -> None:
        """Deliver an exception instead of a value."""
        if self.is_done:
            return
        self.is_done = True
        self._error = error
        resume = self._resume
        if resume is not None:
            self._resume = None
            resume()

    def on_done(self, resume: Callable[[], None]) -> None:
        """Call `resume` when the value is there (at once if it is)."""
        if self.is_done:
            resume()
        else:
            self._resume = resume

    def result(self) -> T:
        """The delivered value; raises what `fail` was given. Only when `is_done`."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # resolve() was given a T

    def __await__(self) -> Generator[Any, None, T]:
        if not self.is_done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # resolve() was given a T


class drive(Generic[T]):
    """Run `coroutine` now; call `finish(value, error)` exactly once when it has ended.

    `finish` gets `(value, None)` or `(None, error)`. It runs inside the turn that ended the
    coroutine.
    """

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
            if type(awaited) is Reply:
                awaited.on_done(self._step)
            elif isinstance(awaited, asyncio.Future):
                # The flag is a future's guard against being yielded by hand; a task resets it the
                # same way.
                awaited._asyncio_future_blocking = False
                awaited.add_done_callback(self._resume_from_future)
            else:
                asyncio.get_running_loop().call_soon(self._step)

    def _resume_from_future(self, _future: "asyncio.Future[Any]") -> None:
        self._step()


def start_coroutine(coroutine: Coroutine[Any, Any, T]) -> Reply[T]:
    """Run it now; what it returns arrives in the reply."""
    reply: Reply[T] = Reply()

    def finish(value: T | None, error: BaseException | None) -> None:
        if error is not None:
            reply.fail(error)
        else:
            reply.resolve(value)  # type: ignore[arg-type]  # without an error there is a value

    drive(coroutine, finish)
    return reply
