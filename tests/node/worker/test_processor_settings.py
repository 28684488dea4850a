"""A worker preempts nobody; what somebody has chosen for it stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.node.embedded import EmbeddedBroker

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="no such policy here")

_PROGRAM = """
import os, sys, threading
from odradek.node.worker.processor_settings import settle_processors
os.sched_setscheduler(0, getattr(os, sys.argv[1]), os.sched_param(0))
settle_processors(None)
found = [os.sched_getscheduler(0)]
thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
thread.start()
thread.join()
assert found == [getattr(os, sys.argv[2])] * 2, found
"""


@pytest.mark.parametrize(
    ("before", "after"), [("SCHED_OTHER", "SCHED_BATCH"), ("SCHED_IDLE", "SCHED_IDLE")]
)
def test_a_process_and_its_threads_have_the_policy(before: str, after: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, before, after]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_worker_preempts_nobody_and_a_router_may(tmp_path: Path) -> None:
    """What a router does for one client another one waits for."""
    with EmbeddedBroker(tmp_path) as broker:
        policies = {name: os.sched_getscheduler(pid) for name, pid in broker.processes.items()}
    assert policies["worker-0"] == os.SCHED_BATCH
    assert policies["router-0"] == os.SCHED_OTHER
