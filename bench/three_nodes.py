"""Compares three nodes of Odradek with three of Apache Kafka: replication, kills, restarts.

    python -m bench.three_nodes --kafka-jars FOLDER

Topics have three replicas and min.insync.replicas 2; producers use acks=all. Run it on a quiet
machine: both clusters run all the time, and one is idle while the other is loaded.
"""

import json
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import click
from confluent_kafka.admin import AdminClient, NewTopic

from bench import processes, promises, report
from bench.cases import Bench, Figure, Result
from bench.clusters import BenchCluster, kafka_cluster, odradek_cluster
from bench.metadata_changes import metadata_changes_per_second
from bench.options import (
    REPOSITORY,
    log_progress,
    with_kafka_jars,
    with_page,
    with_rounds,
    with_warm_up,
)
from bench.outages import SteadyProducer

PAGE = REPOSITORY / "docs" / "benchmarks-cluster.md"
PARTITIONS = 6
CLIENTS = 16
SYNC_TIMEOUT_S = 120.0
REPLICATION = Figure(
    name="produce 1 KiB, 250 records a request, 5 in flight a node, 6 partitions",
    unit="MB/s",
    is_lower_better=False,
)
METADATA_CHANGES = Figure(
    name="a topic's config is changed, 16 clients on all nodes, one change under way each",
    unit="changes/s",
    is_lower_better=False,
)
KILL = Figure(
    name="the leader's node is killed: longest gap between acknowledgements",
    unit="s",
    is_lower_better=True,
)
RESTART = Figure(
    name="each node is restarted in turn: longest gap between acknowledgements",
    unit="s",
    is_lower_better=True,
)


@click.command()
@with_kafka_jars
@with_rounds
@click.option("--seconds", default=5.0, show_default=True, help="Of each replication case.")
@with_warm_up
@click.option("--kills", default=10, show_default=True, help="Of nodes of Odradek.")
@click.option("--kafka-kills", default=2, show_default=True, help="Of nodes of Kafka.")
@with_page(PAGE)
def main(
    kafka_jars: Path,
    rounds: int,
    seconds: float,
    warm_up: float,
    kills: int,
    kafka_kills: int,
    page: Path,
) -> None:
    """Measure three nodes of Odradek beside three of Kafka and write a page of ratios."""
    load_average = os.getloadavg()[0]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odradek-bench-")))
        load = Bench(directory, seconds=seconds).load
        if load is None:
            raise click.ClickException("the load needs a C compiler: install gcc")
        log_progress("starting both clusters")
        both = (
            stack.enter_context(kafka_cluster(kafka_jars, directory)),
            stack.enter_context(odradek_cluster(REPOSITORY, directory)),
        )
        results: dict[tuple[Figure, str], list[Result]] = {}

        def note(figure: Figure, cluster: BenchCluster, result: Result) -> None:
            results.setdefault((figure, cluster.name), []).append(result)
            log_progress(f"{cluster.name:8} {figure.name}: {result.value:.3f} {figure.unit}")

        for cluster in both:
            measure_replication(cluster, load, warm_up)
        for number in range(rounds):
            for cluster in both if number % 2 == 0 else reversed(both):
                note(REPLICATION, cluster, measure_replication(cluster, load, seconds))
                note(METADATA_CHANGES, cluster, measure_metadata_changes(cluster, seconds))
        for cluster in both:
            for gap_s in measure_kills(cluster, kafka_kills if cluster is both[0] else kills):
                note(KILL, cluster, _seconds(gap_s))
        for number in range(rounds):
            for cluster in both if number % 2 == 0 else reversed(both):
                for gap_s in measure_restarts(cluster):
                    note(RESTART, cluster, _seconds(gap_s))
        kafka, odradek = both
        options = f"--rounds {rounds} --seconds {seconds:g} --warm-up {warm_up:g} --kills {kills}"
        text = report.render_page(
            report.CLUSTER_INTRODUCTION,
            [
                report.Comparison(
                    case=figure,
                    kafka=results[figure, kafka.name],
                    odradek=results[figure, odradek.name],
                )
                for figure in (REPLICATION, METADATA_CHANGES, KILL, RESTART)
            ],
            versions={kafka.name: kafka.version, odradek.name: odradek.version},
            machine=processes.machine(),
            command=f"make bench-cluster ARGS='{options}'",
            load_average=load_average,
        )
    page.write_text(text)
    log_progress(f"written to {page}")
    gaps = [result.value for result in results[KILL, odradek.name]]
    restarts = results[RESTART, kafka.name], results[RESTART, odradek.name]
    measured = {KILL.name: statistics.median(gaps), RESTART.name: report.ratio(RESTART, *restarts)}
    promises.check(measured)


def measure_replication(cluster: BenchCluster, load: Path, seconds: float) -> Result:
    """One load for each node, on the partitions that it leads, at the same time."""
    topic = _new_topic(cluster, PARTITIONS)
    leaders = _leaders(cluster, topic)
    before = sum(processes.cpu_seconds(pid) for pid in cluster.pids)
    running = []
    for node_id, node in cluster.nodes.items():
        led = [str(partition) for partition, leader in leaders.items() if leader == node_id]
        if led:
            host = [str(load), "produce", "127.0.0.1", str(node.port), topic, ",".join(led) + ","]
            command = [*host, "1024", "250", "5", "-1", str(seconds)]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=None))
    rows = [json.loads(each.communicate(timeout=600)[0] or b"{}") for each in running]
    if any(each.returncode for each in running):
        raise RuntimeError(f"{cluster.name}: the load failed")
    used = sum(processes.cpu_seconds(pid) for pid in cluster.pids) - before
    _delete(cluster, topic)
    return Result(
        value=sum(row["mb_per_second"] for row in rows),
        p50_ms=None,
        p99_ms=None,
        cpu_us_per_record=used / sum(row["records"] for row in rows) * 1e6,
    )


def measure_metadata_changes(cluster: BenchCluster, seconds: float) -> Result:
    """Many clients change the configuration of one topic."""
    topic = _new_topic(cluster, 1)
    ports = [node.port for node in cluster.nodes.values()]
    value = metadata_changes_per_second(ports, topic, CLIENTS, seconds)
    _delete(cluster, topic)
    return Result(value=value, p50_ms=None, p99_ms=None, cpu_us_per_record=None)


def measure_kills(cluster: BenchCluster, kills: int) -> list[float]:
    """SIGKILL the leader's node several times; returns the gaps in seconds. RuntimeError if the log
    and the acknowledged records differ."""
    gaps = []
    topic = _new_topic(cluster, 1)
    load = SteadyProducer(cluster.bootstrap, topic)
    load.start()
    for _ in range(kills):
        load.wait_for_progress()
        leader = _leaders(cluster, topic)[0]
        began = time.monotonic()
        cluster.kill(leader)
        load.wait_for_progress()
        gaps.append(load.longest_gap_s(began))
        cluster.start(leader)
        _wait_until_in_sync(cluster, topic)
    _end(cluster, load)
    _delete(cluster, topic)
    return gaps


def measure_restarts(cluster: BenchCluster) -> list[float]:
    """Restart each node in turn with SIGTERM; returns the gaps in seconds."""
    gaps = []
    topic = _new_topic(cluster, 1)
    load = SteadyProducer(cluster.bootstrap, topic)
    load.start()
    for node_id in cluster.nodes:
        load.wait_for_progress()
        began = time.monotonic()
        cluster.stop(node_id)
        cluster.start(node_id)
        _wait_until_in_sync(cluster, topic)
        load.wait_for_progress()
        gaps.append(load.longest_gap_s(began))
    _end(cluster, load)
    _delete(cluster, topic)
    return gaps


def _end(cluster: BenchCluster, load: SteadyProducer) -> None:
    faults = load.finish()
    if faults:
        raise RuntimeError(f"{cluster.name}: of the acknowledged records {faults}")


def _seconds(value: float) -> Result:
    return Result(value=value, p50_ms=None, p99_ms=None, cpu_us_per_record=None)


def _admin(cluster: BenchCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def _new_topic(cluster: BenchCluster, partitions: int) -> str:
    topic = f"bench-{uuid4().hex[:8]}"
    config = {"min.insync.replicas": "2", "file.delete.delay.ms": "1000"}
    new = NewTopic(topic, partitions, replication_factor=3, config=config)
    admin = _admin(cluster)
    deadline = time.monotonic() + SYNC_TIMEOUT_S
    while len(admin.list_topics(timeout=20).brokers) < len(cluster.nodes):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{cluster.name}: the nodes do not find each other")
        time.sleep(0.05)
    admin.create_topics([new], operation_timeout=30)[topic].result(60)
    _wait_until_in_sync(cluster, topic)
    time.sleep(0.5)  # Kafka reports leaders a moment before they accept requests
    return topic


def _delete(cluster: BenchCluster, topic: str) -> None:
    admin = _admin(cluster)
    admin.delete_topics([topic])[topic].result(60)


def _leaders(cluster: BenchCluster, topic: str) -> dict[int, int]:
    found = _admin(cluster).list_topics(topic, timeout=20).topics[topic].partitions
    return {number: partition.leader for number, partition in found.items()}


def _wait_until_in_sync(cluster: BenchCluster, topic: str) -> None:
    admin = _admin(cluster)
    deadline = time.monotonic() + SYNC_TIMEOUT_S
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, timeout=20).topics[topic].partitions
        if found and all(p.leader >= 0 and len(p.isrs) == 3 for p in found.values()):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{cluster.name}: {topic} is not on three nodes in sync")


if __name__ == "__main__":
    main()
