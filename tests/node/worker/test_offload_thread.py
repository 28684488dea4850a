"""The offload thread: it runs beside its owner, which gets its errors."""

import threading

import pytest

from odradek.node.worker.offload_thread import OffloadThread

DEADLINE_S = 10


def test_work_runs_in_another_thread_after_settle() -> None:
    seen: list[tuple[str, int]] = []

    def note(what: str) -> None:
        seen.append((what, threading.get_ident()))

    helper = OffloadThread(lambda: note("settled"))
    for number in range(3):
        helper.start(lambda number=number: note(f"work {number}"))  # type: ignore[misc]
        helper.wait()
    assert [what for what, _ in seen] == ["settled", "work 0", "work 1", "work 2"]
    assert len({thread for _, thread in seen}) == 1
    assert seen[0][1] != threading.get_ident()


def test_the_owner_runs_at_the_same_time() -> None:
    helper = OffloadThread(lambda: None)
    owner_was_here = threading.Event()
    outcome: list[bool] = []
    helper.start(lambda: outcome.append(owner_was_here.wait(DEADLINE_S)))
    owner_was_here.set()
    helper.wait()
    assert outcome == [True]


def test_wait_raises_the_error_and_the_thread_continues() -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    helper = OffloadThread(lambda: None)
    helper.start(fail)
    with pytest.raises(OSError, match="the disk is gone"):
        helper.wait()
    done: list[int] = []
    helper.start(lambda: done.append(1))
    helper.wait()
    assert done == [1]
