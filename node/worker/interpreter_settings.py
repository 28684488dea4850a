"""How the interpreter of a worker collects garbage and switches threads, and what is compiled."""

import gc
import sys
from typing import Final

from odradek.node.structured_log import get_logger
from odradek.protocol.record_walker import IS_COMPILED

log = get_logger(__name__)

GC_ALLOCATIONS: Final = 50_000
"""Allocations minus deallocations between two collections of the youngest generation."""
SWITCH_INTERVAL_S: Final = 0.0005
"""After so long the thread that checks records gives way to the turns. Python's default of 5 ms
would be felt at each of several points of a turn where the interpreter lock is taken anew."""


def settle_interpreter() -> None:
    """To be called once, after the modules are imported."""
    # Requests leave no reference cycles. The collector must not scan thousands of waiting requests
    # again and again (a third of all CPU with 2,000 long polls).
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 50)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def report_compilation() -> None:
    """Say in the log whether records are checked by compiled code."""
    if IS_COMPILED:
        log.info("the check of produced records is compiled")
    else:
        log.warning(
            "the check of produced records is not compiled and takes fifty times as long",
            action="reinstall on a machine with a C compiler",
        )
