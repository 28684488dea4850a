"""The standard `process_*` metrics of Prometheus, from /proc. Where that is not there, only the
CPU time is known.
"""

import os
import resource
import time
from typing import Final

from odradek.node.metrics.registry import Metrics

_STARTED_S: Final = time.time()
"""When this module was imported: within a second of the process's start."""
_VIRTUAL, _RESIDENT = range(2)
"""Fields of /proc/self/statm, in pages."""


def register_process_metrics(metrics: Metrics) -> None:
    """Have this process's own metrics read."""
    metrics.read("process_cpu_seconds_total", time.process_time)
    metrics.read("process_resident_memory_bytes", resident_bytes)
    metrics.read("process_virtual_memory_bytes", lambda: _memory_bytes(_VIRTUAL))
    metrics.read("process_start_time_seconds", lambda: _STARTED_S)
    metrics.read("process_open_fds", open_descriptors)
    metrics.read("process_max_fds", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def resident_bytes() -> int:
    """Resident memory of this process; 0 where it is not known."""
    return _memory_bytes(_RESIDENT)


def _memory_bytes(field: int) -> int:
    """A field of statm, in bytes; 0 where it is not known."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[field]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def open_descriptors() -> int:
    """How many descriptors the process has; 0 where it is not known."""
    try:
        # One of them is that of the listing.
        return len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return 0
