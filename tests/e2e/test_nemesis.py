"""Three nodes under load with killed and frozen processes, network partitions, disk and clock
faults.

Three replicas, min.insync.replicas 2, two idempotent producers with default settings that reach the
nodes over different paths, and a consumer group. After each fault the cluster must recover: all
nodes serve, all replicas are in sync, every producer writes to every partition, the group reads it.
At the end the acknowledged records must be in the log once and in order, and all consumers must
have read the same.

`make nemesis MINUTES=n SEED=s` runs for longer, with faults in an order that the seed determines.
"""

import os
import random
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.conftest import Report
from tests.e2e.nemesis import (
    CLOCK_FAULTS,
    FAKETIME,
    FAULTS,
    FaultyCluster,
    faulty_cluster,
    full_disk,
)
from tests.support.disks import SmallDisk, small_disk

SEED = int(os.environ.get("TEST_SEED", "0"))
MINUTES = float(os.environ.get("NEMESIS_MINUTES", "0"))
CHOSEN = os.environ.get("NEMESIS_FAULTS", "").split(",")
DISK_BYTES = 192 << 20
FAULTS_OF_A_ROUND = 6
"""After these faults the clients stop, their history is checked, and a new cluster begins."""

DEATHS = ("kill_leader", "kill_controller", "kill_processes")
FREEZES = (
    "freeze_leader",
    "freeze_worker",
    "freeze_router",
    "freeze_all_routers",
    "freeze_controller",
    "slow_worker",
)
PARTITIONS = (
    "leader_without_followers",
    "leader_deaf_to_a_follower",
    "leader_without_controller",
    "controller_without_others",
    "controller_mute",
    "split",
)
BAD_LINES = ("broken_connections", "flapping_connections", "slow_connections")


def seed_of_a_run() -> int:
    return SEED or random.randrange(1, 2**31)


def inject(field: FaultyCluster, names: Iterable[str], report: Report) -> None:
    """Inject one fault after another; prints the producers' longest gaps."""
    waits = [f"{name} {field.inject(FAULTS[name]):.1f}" for name in names]
    report(f"longest waits of a producer in s: {', '.join(waits)}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(DEATHS, id="deaths"),
        pytest.param(FREEZES, id="freezes"),
        pytest.param(PARTITIONS, id="partitions"),
        pytest.param(BAD_LINES, id="bad-lines"),
    ],
)
def test_nothing_is_lost_and_all_is_well_again(
    names: Sequence[str], tmp_path: Path, report: Report
) -> None:
    with faulty_cluster(tmp_path, seed_of_a_run()) as field:
        inject(field, names, report)


@pytest.mark.slow
@pytest.mark.skipif(not FAKETIME, reason="needs libfaketime")
def test_a_clock_that_jumps_harms_nobody(tmp_path: Path, report: Report) -> None:
    with faulty_cluster(tmp_path, seed_of_a_run(), has_clocks=True) as field:
        inject(field, CLOCK_FAULTS, report)


@pytest.mark.slow
def test_others_lead_where_a_disk_is_full(tmp_path: Path, report: Report) -> None:
    with ExitStack() as stack:
        disks: dict[int, SmallDisk] = {}

        def mount(nodes: Cluster) -> None:
            disks[0] = stack.enter_context(small_disk(nodes[0].data, DISK_BYTES))

        with faulty_cluster(tmp_path, seed_of_a_run(), prepare=mount) as field:
            gap_s = field.inject(partial(full_disk, disk=disks[0], node_id=0))
            report(f"longest wait of a producer in s: full_disk {gap_s:.1f}")


@pytest.mark.slow
@pytest.mark.skipif(not MINUTES, reason="make nemesis MINUTES=n runs it")
def test_faults_in_any_order(tmp_path: Path, report: Report) -> None:
    """TEST_SEED is the seed of the first round."""
    until = time.monotonic() + 60 * MINUTES
    seeds = random.Random(seed_of_a_run())
    possible = sorted(FAULTS if FAKETIME else FAULTS.keys() - set(CLOCK_FAULTS))
    chosen = [name for name in possible if name in CHOSEN or CHOSEN == [""]]
    for number in count():
        if number and time.monotonic() >= until:
            break
        seed = SEED if SEED and not number else seeds.randrange(1, 2**31)
        with faulty_cluster(tmp_path / f"round-{number}", seed, has_clocks=bool(FAKETIME)) as field:
            inject(field, field.random.choices(chosen, k=FAULTS_OF_A_ROUND), report)
