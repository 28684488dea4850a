"""Eight banks and eight auditors, with a kill every few seconds: the sums always hold.

A run of the tests takes ten seconds of it. `make bank MINUTES=5` runs longer; TEST_SEED repeats the
kills of a failed run.
"""

import os
import random
import time
from pathlib import Path

import pytest

from tests.e2e.bank import (
    PARTITIONS,
    SOURCE,
    TIMEOUT_S,
    TOPIC,
    Bank,
    BankAuditor,
    StableWatch,
    as_text,
    audit,
    ends_of,
    progress,
)
from tests.e2e.cluster import Cluster, running_cluster
from tests.e2e.conftest import Report

BANKS = 8
AUDITORS = 8
DURATION_S = 60 * float(os.environ.get("TEST_BANK_MINUTES", "0")) or 10.0
FAILOVER_S = 40.0
"""A client gives up a request to a killed process only after half a minute."""
VICTIMS = ("router-0", "worker-0", "node")


def kill(nodes: Cluster, node_id: int, victim: str) -> None:
    """SIGKILL a process and wait until it is replaced."""
    node = nodes[node_id]
    if victim == "node":
        node.kill()
        node.start()
    else:
        node.kill_process(victim)
        node.wait_until_ready()
    nodes.wait_for_brokers(node_id, set(nodes.nodes))
    for topic in (TOPIC, SOURCE, "__transaction_state", "__consumer_offsets"):
        nodes.wait_until_whole(topic)


@pytest.mark.slow
def test_sums_hold_whoever_is_killed(tmp_path: Path, report: Report) -> None:
    seed = int(os.environ.get("TEST_SEED", "0")) or random.randrange(1, 2**31)
    chance = random.Random(seed)
    with running_cluster(tmp_path) as nodes:
        bootstrap = nodes.bootstrap_servers
        for topic, partitions in ((TOPIC, PARTITIONS), (SOURCE, 1)):
            nodes[0].create_topic(
                topic, partitions=partitions, configs={"min.insync.replicas": "2"}
            )
            nodes.wait_until_whole(topic)
        banks = [Bank(bootstrap, number) for number in range(BANKS)]
        auditors = [BankAuditor(bootstrap, number) for number in range(AUDITORS)]
        watch = StableWatch(bootstrap)
        for thread in (*banks, *auditors, watch):
            thread.start()
        kills: list[str] = []
        try:
            progress(banks, 1)
            until = time.monotonic() + DURATION_S
            while not kills or time.monotonic() < until:
                victim, node_id = VICTIMS[len(kills) % len(VICTIMS)], chance.choice(range(3))
                kills.append(f"{victim} of {node_id}")
                kill(nodes, node_id, victim)
                progress(banks, 1)
            for bank in banks:
                bank.stop()
            behind_s = watch.stop()
            ends = ends_of(bootstrap, banks)
            read = [auditor.finish(ends) for auditor in auditors]
            for other in read:
                different = (other - read[0]) + (read[0] - other)
                assert not different, "auditors do not agree"
            audit(bootstrap, banks, read[0])
            assert behind_s <= TIMEOUT_S + FAILOVER_S
        except BaseException as error:
            error.add_note(f"TEST_SEED={seed}, kills: {', '.join(kills)}")
            raise
    report(
        f"{as_text(banks)}, {len(kills)} kills in {DURATION_S:.0f} s;"
        f" a last stable offset stood still for {behind_s:.1f} s at most"
    )
