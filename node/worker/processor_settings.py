"""On which processors a worker runs, and that it preempts nobody there (ADR 5).

A worker that is woken by a request preempts whoever runs on its processor, which on a small
machine is the client, in the middle of sending the next ones. Then each request is a turn of the
log, with a commit and two context switches of its own. Under SCHED_BATCH a process takes an idle
processor as soon as any other, its share of a busy one, too, but it preempts nobody: the client
sends what it has, and one turn serves it all.
"""

import os
from collections.abc import Callable
from functools import partial

from odradek.node.cpu_affinity import ProcessorSets, set_affinity
from odradek.node.structured_log import get_logger

log = get_logger(__name__)


def settle_processors(placement: ProcessorSets | None) -> Callable[[], None] | None:
    """To be called once by the first thread. Returns what the offload thread is to call."""
    _use_batch_scheduling()
    if placement is None:
        return None
    set_affinity(placement.workers)
    # The offload thread runs on the routers' processors: they wait for the answers.
    return partial(set_affinity, placement.routers)


def _use_batch_scheduling() -> None:
    """Of the calling thread and those that it starts: sched(7). A policy that somebody has chosen
    is kept."""
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        # Some sandboxes forbid it. Only speed depends on it.
        log.info("the scheduling policy cannot be set", reason=str(error))
