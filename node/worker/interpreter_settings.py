"""How the interpreter of a worker collects garbage and switches threads."""

import gc
import sys
from typing import Final

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
