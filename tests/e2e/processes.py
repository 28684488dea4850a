"""Memory, CPU time and files of the processes of a node, as the kernel counts them."""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from odradek.node.embedded import EmbeddedBroker
from odradek.node.supervisor import STATE_NAME, NodeState


def pids_of(node: EmbeddedBroker) -> dict[str, int]:
    """Every process of the node by name, with the supervisor."""
    state = msgspec.json.decode((node.data / STATE_NAME).read_bytes(), type=NodeState)
    return {"supervisor": state.pid, **state.children}


def resident_mib(pids: Mapping[str, int]) -> dict[str, float]:
    """Resident memory by process. A shared page counts for each of them."""
    return {name: psutil.Process(pid).memory_info().rss / (1 << 20) for name, pid in pids.items()}


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """CPU time by process since its start, in user and kernel mode."""
    return {name: time.clock_gettime(_processor_clock_of(pid)) for name, pid in pids.items()}


def _processor_clock_of(pid: int) -> int:
    """The clock that clock_getcpuclockid(3) names on Linux. It counts nanoseconds; /proc has
    hundredths of a second."""
    return (~pid << 3) | 2


def dropped_but_held(pids: Mapping[str, int], folder: Path) -> list[str]:
    """Files of a folder that are deleted but still use space, because a process has them open or
    mapped, with the process's name."""
    held = []
    for name, pid in pids.items():
        paths = {line[73:] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                paths.add(str(descriptor.readlink()))
        dropped = (p for p in paths if p.startswith(str(folder)) and p.endswith("(deleted)"))
        held += [f"{name}: {path}" for path in dropped]
    return held


def as_text(values: Mapping[str, float], unit: str) -> str:
    """`total unit (name value, ...)` with two decimals."""
    parts = ", ".join(f"{name} {value:.2f}" for name, value in values.items())
    return f"{sum(values.values()):.2f} {unit} ({parts})"
