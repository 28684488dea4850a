"""CPU time and memory of a tree of processes, from /proc (Linux).

Only processes that are alive at the time of the call count.
"""

import os
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """`root` and all of its descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        if (PROC / str(pid)).exists():
            found.append(pid)
            queue.extend(children.get(pid, []))
    return found


def cpu_seconds(root: int) -> float:
    """User and system time of the tree, with its ended children."""
    ticks = 0
    for pid in tree(root):
        fields = _stat(pid)
        if fields:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS_PER_SECOND


def run_ns(pid: int) -> int:
    """Nanoseconds that the threads of one process have run."""
    tasks = (PROC / str(pid) / "task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def memory_mib(root: int) -> float:
    """Memory of the tree; a shared page counts once (PSS)."""
    kib = 0
    for pid in tree(root):
        try:
            text = (PROC / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue
        kib += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return kib / 1024


def machine() -> dict[str, str]:
    """Processor, memory and system of the machine, without its name."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in (PROC / "cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    memory_kib = int((PROC / "meminfo").read_text().split()[1])
    return {
        "processor": cpu,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory_kib / (1 << 20):.0f} GiB",
        "kernel": f"{os.uname().sysname} {'.'.join(os.uname().release.split('.')[:2])}",
    }


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on: [1] parent, [11:15] times; [] if ended."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    # The name in parentheses may contain parentheses and spaces.
    return text[text.rindex(")") + 2 :].split()
