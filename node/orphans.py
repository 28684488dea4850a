"""Reaps the orphans that an init process inherits.

In a container the supervisor is process 1. Whatever loses its parent there becomes its child:
what a health check or `docker exec` left behind. An ended process that nobody waits for keeps its
entry in the process table, and a container may have few of these (pids.max).
"""

import os
from collections.abc import Container

INIT_PROCESS_ID = 1


def reap_orphans(own: Container[int | None]) -> int:
    """Reap children that have ended, other than our `own`, whose exit codes somebody waits for.
    Returns how many there were; only process INIT_PROCESS_ID has any. Ends at the first one
    of our own that has ended: the caller reaps it, and calls again."""
    reaped = 0
    if os.getpid() != INIT_PROCESS_ID:
        return reaped
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return reaped
        if ended is None or ended.si_pid in own:
            return reaped
        os.waitpid(ended.si_pid, 0)
        reaped += 1
