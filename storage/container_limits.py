"""What this process may use at most, together with the others of its container: memory, processors.

Limits are those of a control group, in version 1 or 2 of the kernel's interface: inside a container
its own group is the root, otherwise /proc/self/cgroup names it.
"""

from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_UNLIMITED_BYTES = 1 << 60
"""Version 1 has a number of this size in place of no limit."""


def memory_limit_bytes(groups: Path = _GROUPS, own_group: Path = _OWN_GROUP) -> int | None:
    """The lowest limit of this process's control group; None if there is none."""
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [_memory_limit(folder, names) for folder in _folders("memory", groups, own_group)]
    return min((limit for limit in limits if limit is not None), default=None)


def processor_limit(groups: Path = _GROUPS, own_group: Path = _OWN_GROUP) -> float | None:
    """How many processors' time the control group may use; None if there is no limit."""
    limits = [_processor_limit(folder) for folder in _folders("cpu", groups, own_group)]
    return min((limit for limit in limits if limit is not None), default=None)


def _folders(controller: str, groups: Path, own_group: Path) -> Iterator[Path]:
    """Where the files of a controller may be."""
    yield groups
    yield groups / controller
    try:
        lines = own_group.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield groups / path.lstrip("/")
        elif controller in controllers.split(","):
            yield groups / controller / path.lstrip("/")


def _memory_limit(folder: Path, names: tuple[str, ...]) -> int | None:
    for name in names:
        # It may be "max".
        if (number := _read_number(folder / name)) is not None and number < _UNLIMITED_BYTES:
            return number
    return None


def _processor_limit(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    quota_us = _read_number(folder / "cpu.cfs_quota_us")
    period_us = _read_number(folder / "cpu.cfs_period_us")
    if quota_us is None or quota_us < 0 or not period_us:  # -1 is no limit
        return None
    return quota_us / period_us


def _read_number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
