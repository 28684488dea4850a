"""One node: outages after a SIGKILL of its processes, and the CPU time of a heartbeat and of
consumers with nothing to read.

    python -m bench.one_node

Odradek alone. The figures are compared with promises.py, not with Kafka.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import click
from confluent_kafka.admin import AdminClient, NewTopic

from bench import processes, promises
from bench.cases import Figure, make_topic
from bench.options import REPOSITORY, log_progress
from bench.outages import SteadyProducer
from odradek.node.blocking_client import BlockingClient, NotABrokerError
from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from odradek.protocol.messages.partitions import TopicIdPartitions

GROUP = "members"
TOPIC = "orders"
MEMBERS = 200
PARTITIONS = 1_000
TIMEOUT_S = 60.0
WORKER_KILL = Figure(
    name="a worker is killed: longest gap between acknowledgements", unit="s", is_lower_better=True
)
ROUTER_KILL = Figure(
    name="a router is killed: time until a heartbeat is answered", unit="s", is_lower_better=True
)
HEARTBEAT = Figure(
    name="a heartbeat of a stable group (KIP-848): CPU", unit="us", is_lower_better=True
)
CONSUMERS = 2_000
LONG_POLLS = Figure(
    name="2,000 consumers in long polls of 500 ms: CPU", unit="% of a core", is_lower_better=True
)
FIGURES = (WORKER_KILL, ROUTER_KILL, HEARTBEAT, LONG_POLLS)
LONG_POLLS_S = 10.0
_SETTLED_S = 3.0


@click.command()
@click.option("--kills", default=5, show_default=True, help="Of the worker and of the router.")
@click.option("--rounds", default=100, show_default=True, help="Of heartbeats of the whole group.")
def main(kills: int, rounds: int) -> None:
    """Measure outages and heartbeats; exits with 1 if a promise is not kept."""
    with tempfile.TemporaryDirectory(prefix="odradek-bench-") as folder:
        settings = {"profile": "standard"}
        with EmbeddedBroker(Path(folder), settings=settings, timeout_s=TIMEOUT_S) as broker:
            measured = {
                LONG_POLLS.name: long_polls_cpu(broker),
                WORKER_KILL.name: statistics.median(worker_kill_gaps_s(broker, kills)),
                HEARTBEAT.name: heartbeat_cpu_us(broker, rounds),
                ROUTER_KILL.name: statistics.median(router_kill_outages_s(broker, kills)),
            }
    for figure in FIGURES:
        click.echo(f"{figure.name}: {measured[figure.name]:.2f} {figure.unit}")
    promises.check(measured)


def long_polls_cpu(broker: EmbeddedBroker) -> float:
    """CPU time of the node while consumers wait, in percent of a core."""
    topic = f"bench-{uuid4().hex[:8]}"
    make_topic(AdminClient({"bootstrap.servers": broker.bootstrap_servers}), NewTopic(topic, 1))
    seconds = str(LONG_POLLS_S + 2 * _SETTLED_S)
    load = [sys.executable, "-m", "bench.long_polls", broker.bootstrap_servers, topic]
    with subprocess.Popen(
        [*load, str(CONSUMERS), seconds], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as consumers:
        assert consumers.stdout is not None
        consumers.stdout.readline()
        time.sleep(_SETTLED_S)
        before = processes.cpu_seconds(broker.pid)
        time.sleep(LONG_POLLS_S)
        used = processes.cpu_seconds(broker.pid) - before
        told = json.loads(consumers.communicate(timeout=TIMEOUT_S)[0])
    log_progress(f"{told['fetches_per_second']:.0f} fetches/s")
    return 100 * used / LONG_POLLS_S


def worker_kill_gaps_s(broker: EmbeddedBroker, kills: int) -> list[float]:
    """SIGKILL the workers several times under load. RuntimeError if the log and the acknowledged
    records differ."""
    topic = f"bench-{uuid4().hex[:8]}"
    make_topic(AdminClient({"bootstrap.servers": broker.bootstrap_servers}), NewTopic(topic, 1))
    load = SteadyProducer(broker.bootstrap_servers, topic)
    load.start()
    gaps = []
    for _ in range(kills):
        load.wait_for_progress()
        began = time.monotonic()
        _kill(broker, "worker")
        load.wait_for_progress()
        gaps.append(load.longest_gap_s(began))
        log_progress(f"worker killed: {gaps[-1]:.2f} s")
    if faults := load.finish():
        raise RuntimeError(f"of the acknowledged records {faults}")
    return gaps


def heartbeat_cpu_us(broker: EmbeddedBroker, rounds: int) -> float:
    """CPU time of routers and workers for one heartbeat of a stable group."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    make_topic(admin, NewTopic(TOPIC, PARTITIONS))
    members = [LoadMember(broker) for _ in range(MEMBERS)]
    deadline = time.monotonic() + TIMEOUT_S
    while not all(member.partition_count == PARTITIONS // MEMBERS for member in members):
        if time.monotonic() > deadline:
            raise RuntimeError("the group is not stable in time")
        for member in members:
            member.heartbeat()
    pids = [pid for name, pid in broker.processes.items() if name.startswith(("router", "worker"))]
    before = sum(map(processes.cpu_seconds, pids))
    for _ in range(rounds):
        for member in members:
            member.heartbeat()
    used = sum(map(processes.cpu_seconds, pids)) - before
    for member in members:
        member.close()
    return used / (rounds * len(members)) * 1e6


def router_kill_outages_s(broker: EmbeddedBroker, kills: int) -> list[float]:
    """SIGKILL the router that hosts the group; the seconds until the next answered heartbeat."""
    member = LoadMember(broker)
    outages = []
    for _ in range(kills):
        member.heartbeat()
        began = time.monotonic()
        _kill(broker, "router")
        member.close()
        member.heartbeat()
        outages.append(time.monotonic() - began)
        log_progress(f"router killed: {outages[-1]:.2f} s")
        broker.wait_until_ready()
    member.close()
    return outages


def _kill(broker: EmbeddedBroker, kind: str) -> None:
    for name, pid in broker.processes.items():
        if name.startswith(kind):
            os.kill(pid, signal.SIGKILL)


class LoadMember:
    """A member of a consumer group (KIP-848) with its own connection."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._client: BlockingClient | None = None
        self._id = str(uuid4())
        self._epoch = 0
        self._owned: list[TopicIdPartitions] = []

    @property
    def partition_count(self) -> int:
        """The number of partitions that it owns."""
        return sum(len(topic.partitions) for topic in self._owned)

    def heartbeat(self) -> None:
        """One heartbeat, repeated until the coordinator answers. RuntimeError on an error code."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=self._id, member_epoch=self._epoch
        )
        if self._epoch == 0:
            request.subscribed_topic_names = [TOPIC]
            request.rebalance_timeout_ms = 60_000
            request.topic_partitions = []
        elif self._owned:
            request.topic_partitions = self._owned
        answer = _until_answered(lambda: self._send(request))
        if answer.error_code:
            raise RuntimeError(f"a heartbeat was refused: {ErrorCode(answer.error_code).name}")
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self._owned = list(answer.assignment.topic_partitions)

    def close(self) -> None:
        """Close the connection. The next heartbeat opens a new one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _send(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | None:
        try:
            if self._client is None:
                host, port = self._broker.bootstrap_servers.split(":")
                self._client = BlockingClient(host, int(port), TIMEOUT_S)
            answer = self._client.ask(request)
        except (OSError, NotABrokerError, ProtocolError):
            self.close()
            return None
        return None if ErrorCode(answer.error_code).is_retriable else answer


def _until_answered(
    send: Callable[[], ConsumerGroupHeartbeatResponse | None],
) -> ConsumerGroupHeartbeatResponse:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        answer = send()
        if answer is not None:
            return answer
        time.sleep(0.01)
    raise RuntimeError("no heartbeat was answered")


if __name__ == "__main__":
    main()
