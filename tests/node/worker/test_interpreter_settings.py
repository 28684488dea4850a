"""How the interpreter of a worker is set, in a process of its own."""

import subprocess
import sys

_SCRIPT = """
import gc, sys
from odradek.node.worker.interpreter_settings import settle_interpreter
settle_interpreter()
before = [each["collections"] for each in gc.get_stats()]
waiting = [[number] for number in range(40_000)]
after = [each["collections"] for each in gc.get_stats()]
print(before == after, gc.get_freeze_count() > 1_000, sys.getswitchinterval() <= 0.001)
"""


def test_waiting_requests_are_not_scanned_and_threads_give_way_soon() -> None:
    command = [sys.executable, "-c", _SCRIPT]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert told.split() == ["True", "True", "True"]
