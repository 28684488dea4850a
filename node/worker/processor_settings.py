"""Where a worker runs, and whom it interrupts (ADR 5).

A worker that is woken by a request takes the processor from whoever runs there, which on a small
machine is the client, in the middle of sending the next ones. Then each request is a turn of the
log, with a commit and two context switches of its own. Under SCHED_BATCH a process takes an idle
processor as soon as any other, its share of a busy one, too, but it interrupts nobody: the client
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
    _interrupt_nobody()
    if placement is None:
        return None
    set_affinity(placement.workers)
    # The offload thread runs on the routers' processors: they wait for the answers.
    return partial(set_affinity, placement.routers)


def _interrupt_nobody() -> None:
    """Of the calling thread and those that it starts: sched(7). A policy that somebody has chosen
    is kept."""
    if not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        # Some sandboxes forbid it. Only speed depends on it.
        log.info("the scheduling policy cannot be set", reason=str(error))
