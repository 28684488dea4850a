"""CPU affinity: routers on some processors of the machine, workers on the others (ADR 5).

A request goes from the router to a worker and back. A scheduler that sees only one of the two awake
at a time tends to keep both on one processor while the next one idles; on virtual machines always,
since an idle processor looks stolen there. So each side gets processors of its own, in proportion
to its number of processes, and moves freely among them. Other programs are not kept out.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

from odradek.node.structured_log import get_logger

log = get_logger(__name__)


class ProcessorSets(NamedTuple):
    """Two disjoint sets of processors, neither of them empty."""

    routers: frozenset[int]
    workers: frozenset[int]


def split(
    processors: Iterable[int], *, router_count: int, worker_count: int
) -> ProcessorSets | None:
    """Divide the usable processors; None if there are too few."""
    ordered = sorted(processors)
    count = len(ordered)
    if count <= worker_count:
        return None
    share = max(1, count * router_count // (router_count + worker_count))
    return ProcessorSets(frozenset(ordered[:share]), frozenset(ordered[share:]))


def node_processor_sets(*, router_count: int, worker_count: int) -> ProcessorSets | None:
    """The sets on this machine, within the affinity of this process."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return split(os.sched_getaffinity(0), router_count=router_count, worker_count=worker_count)


def set_affinity(processors: Iterable[int]) -> None:
    """Set the affinity of the calling thread and of the threads and processes that it starts."""
    try:
        os.sched_setaffinity(0, processors)
    except OSError as error:
        # Some sandboxes forbid it. Only speed depends on it.
        log.info("the CPU affinity cannot be set", reason=str(error))
