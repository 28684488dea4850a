"""What the processes of a node use: memory, processor time and files, as the kernel counts them."""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from odradek.node.embedded import EmbeddedBroker
from odradek.node.supervisor import STATE_NAME, NodeState


def pids_of(node: EmbeddedBroker) -> dict[str, int]:
    """Every process of the node by name, the supervisor too."""
    state = msgspec.json.decode((node.data / STATE_NAME).read_bytes(), type=NodeState)
    return {"supervisor": state.pid, **state.children}


def resident_mib(pids: Mapping[str, int]) -> dict[str, float]:
    """Resident memory of each; pages that several share count for each of them."""
    return {name: psutil.Process(pid).memory_info().rss / (1 << 20) for name, pid in pids.items()}


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """Processor time of each since its start, in user and kernel mode."""
    return {name: time.clock_gettime(_processor_clock_of(pid)) for name, pid in pids.items()}


def _processor_clock_of(pid: int) -> int:
    """The clock that clock_getcpuclockid(3) names on Linux: it counts nanoseconds, while what
    /proc tells comes in hundredths of a second."""
    return (~pid << 3) | 2


def dropped_but_held(pids: Mapping[str, int], folder: Path) -> list[str]:
    """Files of a folder that were removed and take room still, because a process has them open or
    mapped; with its name."""
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
