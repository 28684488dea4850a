"""What counts as growth of a process."""

import os
from pathlib import Path

from tests.e2e.growth import (
    DESCRIPTORS,
    MEMORY_FACTOR,
    MEMORY_MIB,
    SAMPLES_MIN,
    ProcessSample,
    descriptor_count,
    growth_of,
    memory_mib,
)


def samples(
    role: str, early_mib: float, late_mib: float, late_count: int = 10
) -> list[ProcessSample]:
    """A run of 100 s."""
    early = [ProcessSample(role, 30.0 + at, early_mib, 10) for at in range(SAMPLES_MIN)]
    return early + [
        ProcessSample(role, 80.0 + at, late_mib, late_count) for at in range(SAMPLES_MIN)
    ]


def test_memory_may_grow_within_the_tolerance() -> None:
    limit = 100 * MEMORY_FACTOR + MEMORY_MIB
    [within] = growth_of(samples("router-0", 100, limit), 100)
    assert not within.is_too_large
    [beyond] = growth_of(samples("router-0", 100, limit + 1), 100)
    assert beyond.is_too_large
    assert str(beyond) == "router-0: 100 -> 137 MiB, 10 -> 10 descriptors"


def test_descriptors_that_are_not_closed_are_growth() -> None:
    [leaking] = growth_of(samples("router-0", 100, 100, 11 + DESCRIPTORS), 100)
    assert leaking.is_too_large


def test_roles_are_compared_by_themselves_and_need_samples_in_both_windows() -> None:
    found = growth_of(samples("worker-0", 50, 50) + samples("router-0", 90, 10)[:-1], 100)
    assert [growth.role for growth in found] == ["worker-0"]


def test_what_begins_large_and_is_idle_in_between_is_no_growth() -> None:
    warm_up = [ProcessSample("worker-0", at / 10, 500, 400) for at in range(200)]
    [growth] = growth_of(warm_up + samples("worker-0", 50, 50), 100)
    assert growth.memory_mib == (50, 50)


def test_memory_is_what_the_kernel_counts() -> None:
    before = memory_mib(os.getpid())
    held = bytearray(os.urandom(32 << 20))
    assert 30 < memory_mib(os.getpid()) - before < 40
    assert held


def test_descriptors_of_segments_count_when_the_segments_are_gone(tmp_path: Path) -> None:
    before = descriptor_count(os.getpid())
    path = tmp_path / "segment-00000001.mdb"
    with path.open("wb"):
        assert descriptor_count(os.getpid()) == before
        path.unlink()
        assert descriptor_count(os.getpid()) == before + 1
        with (tmp_path / "another").open("wb"):
            assert descriptor_count(os.getpid()) == before + 2
