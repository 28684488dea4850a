"""Figures of process trees from /proc."""

import os
import subprocess
import sys
import time

import pytest

from bench import processes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BUSY_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    sys.stdin.read()
finally:
    child.kill()
    child.wait()
"""


def test_a_tree_has_its_grandchildren_and_their_processor_time() -> None:
    parent = subprocess.Popen([sys.executable, "-c", BUSY_CHILD], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: len(processes.tree(parent.pid)) == 2, what="the child's child")
        before = processes.cpu_seconds(parent.pid)
        wait_until(lambda: processes.cpu_seconds(parent.pid) > before + 0.1, what="its work")
        assert processes.memory_mib(parent.pid) > 1
    finally:
        parent.communicate(b"")
    assert processes.tree(parent.pid) == []
    assert processes.cpu_seconds(parent.pid) == 0


def test_the_time_that_a_process_has_run_is_in_nanoseconds() -> None:
    before_ns, began_ns = processes.run_ns(os.getpid()), time.thread_time_ns()
    while time.thread_time_ns() - began_ns < 20_000_000:
        pass
    assert 20_000_000 <= processes.run_ns(os.getpid()) - before_ns < 10**9


def test_the_machine_is_described_without_naming_it() -> None:
    told = processes.machine()
    assert set(told) == {"processor", "cores", "memory", "kernel"}
    assert os.uname().nodename not in " ".join(told.values())
