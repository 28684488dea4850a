"""Limits of control groups, in both versions of the kernel's files."""

from pathlib import Path

import pytest

from odradek.storage.container_limits import memory_limit_bytes, processor_limit


@pytest.mark.parametrize(
    ("files", "own", "limit"),
    [
        ({}, None, None),
        ({"memory.max": "max\n"}, "0::/\n", None),
        ({"memory.max": "268435456\n"}, "0::/\n", 268_435_456),
        ({"system.slice/a.service/memory.max": "1024\n"}, "0::/system.slice/a.service\n", 1024),
        ({"memory.max": "512\n", "a/memory.max": "1024\n"}, "0::/a\n", 512),
        ({"memory/memory.limit_in_bytes": "268435456\n"}, "5:memory:/docker/1\n", 268_435_456),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "5:memory:/\n", None),
        ({"memory/a/memory.limit_in_bytes": "4096\n"}, "6:cpu:/b\n5:hugetlb,memory:/a\n", 4096),
    ],
)
def test_the_limit_of_a_control_group(
    tmp_path: Path, files: dict[str, str], own: str | None, limit: int | None
) -> None:
    assert memory_limit_bytes(*written(tmp_path, files, own)) == limit


@pytest.mark.parametrize(
    ("files", "own", "limit"),
    [
        ({}, None, None),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"cpu.max": "50000 100000\n"}, "0::/\n", 0.5),
        ({"a/cpu.max": "250000 100000\n", "cpu.max": "max 100000\n"}, "0::/a\n", 2.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "1:cpu:/\n", None),
        (
            {"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            "4:cpu,cpuacct:/docker/1\n",
            1.5,
        ),
    ],
)
def test_the_processors_of_a_control_group(
    tmp_path: Path, files: dict[str, str], own: str | None, limit: float | None
) -> None:
    assert processor_limit(*written(tmp_path, files, own)) == limit


def written(folder: Path, files: dict[str, str], own: str | None) -> tuple[Path, Path]:
    """The folder of the control groups, and the file that names this process's group."""
    groups = folder / "cgroup"
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    own_group = folder / "own"
    if own is not None:
        own_group.write_text(own)
    return groups, own_group
