"""The preparation thread: it works on two batches in turns; its owner gets outcomes and errors."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from odradek.node.worker.preparation_thread import Preparation, PreparationThread
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.storage.validation import BatchRejectedError
from tests.support.waiting import is_readable, wait_until


def taken(thread: PreparationThread[str], count: int) -> list[Preparation[str]]:
    """The next `count` that are done, in their order."""
    done: list[Preparation[str]] = []

    def is_there() -> bool:
        done.extend(thread.take())
        return len(done) >= count

    wait_until(is_there)
    return done


def steps_of(*costs: int, error: BaseException | None = None) -> Iterator[int]:
    yield from costs
    if error is not None:
        raise error


def test_it_wakes_its_owner_when_a_batch_is_done() -> None:
    settled: list[int] = []
    thread = PreparationThread[str](lambda: settled.append(threading.get_ident()))
    assert thread.take() == []
    thread.submit(Preparation("a", steps_of(1, 2)))
    assert is_readable(thread, 10)
    (done,) = taken(thread, 1)
    assert (done.subject, done.rejection) == ("a", None)
    assert thread.count == 0
    assert len(settled) == 1
    assert settled[0] != threading.get_ident()
    assert not is_readable(thread)


def test_a_small_batch_overtakes_a_large_one() -> None:
    thread = PreparationThread[str]()
    is_small_done = threading.Event()

    def large() -> Iterator[int]:
        while not is_small_done.wait(0.001):
            yield 3_000_000

    def small() -> Iterator[int]:
        yield 1
        is_small_done.set()

    thread.submit(Preparation("large", large()))
    thread.submit(Preparation("small", small()))
    assert [done.subject for done in taken(thread, 2)] == ["small", "large"]


def test_refusals_are_outcomes() -> None:
    thread = PreparationThread[str]()
    refusal = BatchRejectedError("no", ErrorCode.INVALID_TIMESTAMP)
    thread.submit(Preparation("a", steps_of(1, error=refusal)))
    thread.submit(Preparation("b", steps_of(error=ProtocolError("what is this"))))
    rejections = {done.subject: done.rejection for done in taken(thread, 2)}
    assert rejections["a"] is refusal
    assert rejections["b"] is not None
    assert rejections["b"].code is ErrorCode.CORRUPT_MESSAGE


def test_a_bug_is_raised_where_the_owner_takes() -> None:
    thread = PreparationThread[str]()
    thread.submit(Preparation("a", steps_of(1, error=ZeroDivisionError())))
    assert is_readable(thread, 10)
    with pytest.raises(ZeroDivisionError):
        thread.take()


def test_a_run_ends_when_its_costs_are_spent() -> None:
    preparation = Preparation("a", steps_of(2, 2, 2, 2))
    assert not preparation.run(3)
    assert not preparation.run(3)
    assert preparation.run(3)


def test_a_thread_that_was_not_started_leaves_no_descriptors_behind() -> None:
    thread = PreparationThread[str]()
    pipe = os.readlink(f"/proc/self/fd/{thread.fileno()}")
    assert open_files().count(pipe) == 2
    del thread
    gc.collect()
    assert pipe not in open_files()


def open_files() -> list[str]:
    """What the descriptors of this process stand for."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found
