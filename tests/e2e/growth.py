"""Whether the processes of a cluster grow: memory and descriptors, sampled over hours.

Processes die and start again meanwhile, so samples are compared by role (router-0, worker-0, ...)
and not by process. A process counts from WARM_S after its start. Of each role the median of an
early window (the second quarter of the run) is compared with that of a late one (the last quarter).

Descriptors of segments are not counted: a log that grows has more of them, as many as its reader
keeps open. Those of segments that were deleted are.

Memory is Pss without mapped files: anonymous and shared memory, the latter divided among those that
map it. The pages of the logs that a process has mapped are the page cache's.
"""

import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
import psutil

from odradek.node.embedded import EmbeddedBroker
from tests.e2e.processes import pids_of

INTERVAL_S: Final = 2.0
WARM_S: Final = 15.0
SAMPLES_MIN: Final = 5
"""In each window; with fewer nothing is concluded."""
MEMORY_FACTOR: Final = 1.2
MEMORY_MIB: Final = 16.0
"""A late median may be larger than the early one by this factor and so much more."""
DESCRIPTORS: Final = 24
"""The same for open descriptors: connections come and go."""
_COUNTED: Final = ("Pss_Anon:", "Pss_Shmem:")


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process at one moment, in seconds since the beginning."""

    role: str
    at_s: float
    memory_mib: float
    descriptor_count: int


class GrowthWatch(threading.Thread):
    """Samples the processes of nodes until `stop`."""

    def __init__(self, nodes: Mapping[int, EmbeddedBroker]) -> None:
        super().__init__(daemon=True)
        self.samples: list[ProcessSample] = []
        self._nodes = nodes
        self.began = time.monotonic()
        self._is_stopping = threading.Event()

    def run(self) -> None:
        while not self._is_stopping.wait(INTERVAL_S):
            for node in self._nodes.values():
                # A node that is down, or a process that ends meanwhile.
                with suppress(OSError, msgspec.DecodeError, psutil.Error):
                    for role, pid in pids_of(node).items():
                        self._sample(role, pid)

    def stop(self) -> None:
        """Stop sampling."""
        self._is_stopping.set()
        self.join()

    def _sample(self, role: str, pid: int) -> None:
        if time.time() - psutil.Process(pid).create_time() < WARM_S:
            return
        at_s = time.monotonic() - self.began
        self.samples.append(ProcessSample(role, at_s, memory_mib(pid), descriptor_count(pid)))


def descriptor_count(pid: int) -> int:
    """The open descriptors of a process without those of segments that exist."""
    count = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            target = os.readlink(descriptor)
            count += "/segment-" not in target or target.endswith("(deleted)")
    return count


def memory_mib(pid: int) -> float:
    """Anonymous and shared memory of a process; see the module's docstring."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(_COUNTED)) / 1024


@dataclass(frozen=True, slots=True)
class Growth:
    """The medians of one role in both windows."""

    role: str
    memory_mib: tuple[float, float]
    descriptors: tuple[float, float]

    @property
    def is_too_large(self) -> bool:
        """Whether the role has grown by more than the tolerance."""
        memory, later = self.memory_mib
        return (
            later > memory * MEMORY_FACTOR + MEMORY_MIB
            or self.descriptors[1] > self.descriptors[0] + DESCRIPTORS
        )

    def __str__(self) -> str:
        return (
            f"{self.role}: {self.memory_mib[0]:.0f} -> {self.memory_mib[1]:.0f} MiB,"
            f" {self.descriptors[0]:.0f} -> {self.descriptors[1]:.0f} descriptors"
        )


def growth_of(samples: Iterable[ProcessSample], duration_s: float) -> list[Growth]:
    """The growth of each role that has enough samples in both windows."""
    by_role: dict[str, list[ProcessSample]] = {}
    for sample in samples:
        by_role.setdefault(sample.role, []).append(sample)
    found = []
    for role, of_role in sorted(by_role.items()):
        early = [s for s in of_role if 0.25 <= s.at_s / duration_s < 0.5]
        late = [s for s in of_role if s.at_s / duration_s >= 0.75]
        if min(len(early), len(late)) >= SAMPLES_MIN:
            found.append(
                Growth(
                    role,
                    (median(s.memory_mib for s in early), median(s.memory_mib for s in late)),
                    (
                        median(s.descriptor_count for s in early),
                        median(s.descriptor_count for s in late),
                    ),
                )
            )
    return found
