"""Jobs for the disk: one after the other, elsewhere, and what they raise comes back."""

import select
import threading
from collections.abc import Iterator

import pytest

from odradek.node.controller.disk_thread import DiskThread
from tests.support.waiting import wait_until


@pytest.fixture
def disk() -> Iterator[DiskThread]:
    disk = DiskThread()
    yield disk
    disk.close()


def is_readable(disk: DiskThread) -> bool:
    return bool(select.select([disk.fileno()], [], [], 0)[0])


def test_a_job_is_done_in_another_thread_and_wakes_the_poller(disk: DiskThread) -> None:
    threads: list[int] = []
    assert disk.take_result() == (False, None)
    disk.submit(lambda: threads.append(threading.get_ident()))
    wait_until(lambda: is_readable(disk), what="the poller is woken")
    assert wait_until(disk.take_result)[0]
    assert threads
    assert threads != [threading.get_ident()]
    assert not is_readable(disk)


def test_what_a_job_raises_is_handed_back(disk: DiskThread) -> None:
    def fail() -> None:
        raise OSError("no such luck")

    disk.submit(fail)
    is_done, error = disk.wait_result()
    assert is_done
    assert isinstance(error, OSError)
    disk.submit(lambda: None)
    assert disk.wait_result() == (True, None)


def test_closing_finishes_what_was_given() -> None:
    done: list[int] = []
    disk = DiskThread()
    for number in range(50):
        disk.submit(lambda number=number: done.append(number))  # type: ignore[misc]  # a default
    disk.close()
    assert done == list(range(50))
