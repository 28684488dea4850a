"""Processors are divided between routers and workers."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.node.cpu_affinity import ProcessorSets, node_processor_sets, split
from tests.node.test_config import configured


def sets(placement: ProcessorSets | None) -> tuple[set[int], set[int]]:
    assert placement is not None
    return set(placement.routers), set(placement.workers)


def test_two_processors_are_one_each() -> None:
    assert sets(split({0, 1}, router_count=1, worker_count=1)) == ({0}, {1})


def test_shares_are_in_proportion_to_the_processes() -> None:
    eight = range(8)
    assert sets(split(eight, router_count=1, worker_count=1)) == ({0, 1, 2, 3}, {4, 5, 6, 7})
    assert sets(split(eight, router_count=1, worker_count=3)) == ({0, 1}, {2, 3, 4, 5, 6, 7})
    assert sets(split({2, 3, 7}, router_count=1, worker_count=2)) == ({2}, {3, 7})


@pytest.mark.parametrize(("count", "workers"), [(1, 1), (2, 2), (4, 4), (4, 9)])
def test_too_few_processors_are_shared_by_all(count: int, workers: int) -> None:
    assert split(range(count), router_count=1, worker_count=workers) is None


@given(
    processors=st.sets(st.integers(0, 500), min_size=1, max_size=130), workers=st.integers(1, 64)
)
def test_every_processor_is_used_and_each_side_has_one(processors: set[int], workers: int) -> None:
    placement = split(processors, router_count=1, worker_count=workers)
    if placement is not None:
        assert placement.routers
        assert len(placement.workers) >= min(workers, len(processors) - 1)
        assert placement.routers | placement.workers == processors
        assert not placement.routers & placement.workers


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no processors to choose here")
def test_a_process_sets_its_affinity() -> None:
    program = (
        "import os; from odradek.node.cpu_affinity import set_affinity;"
        "one = min(os.sched_getaffinity(0));"
        "set_affinity({one}); assert os.sched_getaffinity(0) == {one}; set_affinity({100_000})"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_shared_placement_sets_no_affinity() -> None:
    assert configured(processor_placement="shared").placement() is None
    expected = node_processor_sets(router_count=1, worker_count=1)
    assert configured(workers="1").placement() == expected
