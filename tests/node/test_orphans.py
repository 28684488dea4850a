"""Orphans of a process that the kernel gives them to, as it does to process 1 of a container."""

import subprocess
import sys

PROGRAM = """
import ctypes, os, subprocess, sys
from odradek.node import orphans

orphans.INIT_PROCESS_ID = os.getpid()
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
own = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(7)"])
for _ in range(3):
    # The shell ends, and leaves a child that ends when we close the pipe.
    reading, writing = os.pipe()
    subprocess.run(["sh", "-c", "cat >/dev/null & exit 0"], stdin=reading, check=True)
    os.close(reading)
    os.close(writing)
reaped = 0
while reaped < 3:
    reaped += orphans.reap_orphans({own.pid})
    own.poll()
assert orphans.reap_orphans({own.pid}) == 0
print(own.wait())
"""


def test_orphans_are_reaped_and_the_exit_codes_of_own_children_are_kept() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_a_process_that_is_not_init_leaves_its_children_alone() -> None:
    program = (
        "import subprocess\n"
        "from odradek.node.orphans import reap_orphans\n"
        "child = subprocess.Popen(['sh', '-c', 'exit 3'])\n"
        "import os; os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)\n"
        "print(reap_orphans(()), child.wait())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == ("0 3\n", "")
