"""Which processors a node's processes run on: its router on some, its workers on the others.

A request passes from the router to a worker and back, and a scheduler that sees only one of the two
awake at a time likes to keep both on one processor while the next one idles: on virtual machines
always, because a processor at rest looks taken away there. So each side is given processors of its
own, in proportion to the number of processes, and moves freely among those. Nobody is pinned to a
single processor unless there are no more, and whoever else runs on the machine is not kept out.
"""

import logging
import os
from collections.abc import Iterable
from typing import NamedTuple

log = logging.getLogger(__name__)


class ProcessorSets(NamedTuple):
    """Two sets of processors without a common member, neither of them empty."""

    routers: frozenset[int]
    workers: frozenset[int]


def split(
    processors: Iterable[int], *, router_count: int, worker_count: int
) -> ProcessorSets | None:
    """Divide the processors that the node may use; None where there are too few to divide."""
    ordered = sorted(processors)
    count = len(ordered)
    if count <= worker_count:
        return None
    share = max(1, count * router_count // (router_count + worker_count))
    return ProcessorSets(frozenset(ordered[:share]), frozenset(ordered[share:]))


def node_processor_sets(*, router_count: int, worker_count: int) -> ProcessorSets | None:
    """The placement on this machine, within what this process was allowed."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return split(os.sched_getaffinity(0), router_count=router_count, worker_count=worker_count)


def set_affinity(processors: Iterable[int]) -> None:
    """Have the calling thread, and what it starts from now on, run on these processors."""
    try:
        os.sched_setaffinity(0, processors)
    except OSError as error:
        # Some sandboxes forbid it. It is about speed and nothing else.
        log.info("processors cannot be chosen here: %s", error)
