"""Processes and nodes are killed during transactions: no transaction is partly visible or stuck."""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from odradek.protocol.messages.groups import FindCoordinatorRequest
from tests.e2e.bank import (
    CALL_S,
    PARTITIONS,
    SOURCE,
    TOPIC,
    Bank,
    as_text,
    audit,
    position_of,
    progress,
    read_committed,
)
from tests.e2e.cluster import WAIT_S, Cluster, running_cluster
from tests.e2e.conftest import Report, StartNode
from tests.support.waiting import wait_until

BANKS = 3
KILLS = 3
BETWEEN_KILLS = 15
"""Transactions of each bank between two kills."""
KEY_TYPE_TRANSACTION = 1


def run_banks_while_killing(
    bootstrap: str, kills: list[Callable[[], None]], *, commits_offsets: bool = False
) -> list[Bank]:
    """Run banks while processes are killed, over and over."""
    banks = [Bank(bootstrap, number, commits_offsets=commits_offsets) for number in range(BANKS)]
    for bank in banks:
        bank.start()
    for kill in kills:
        progress(banks, BETWEEN_KILLS)
        kill()
    progress(banks, BETWEEN_KILLS)
    for bank in banks:
        bank.stop()
    audit(bootstrap, banks, read_committed(bootstrap, banks))
    return banks


@pytest.mark.slow
@pytest.mark.parametrize("process", ["router-0", "worker-0"])
def test_nothing_is_torn_or_stuck_when_a_process_is_killed(
    process: str, start_node: StartNode, report: Report
) -> None:
    node = start_node({"workers": "2"})
    node.create_topic(TOPIC, partitions=PARTITIONS)
    node.create_topic(SOURCE)

    def kill() -> None:
        node.kill_process(process)
        node.wait_until_ready()

    banks = run_banks_while_killing(node.bootstrap_servers, [kill] * KILLS, commits_offsets=True)
    report(as_text(banks))


def make_topics(nodes: Cluster) -> None:
    for topic, partitions in ((TOPIC, PARTITIONS), (SOURCE, 1)):
        nodes[0].create_topic(topic, partitions=partitions, configs={"min.insync.replicas": "2"})
        nodes.wait_until_whole(topic)


class Payment:
    """One transaction over all partitions and a group's offset, committed during a kill."""

    def __init__(self, nodes: Cluster, name: str) -> None:
        self.nodes = nodes
        self.name = name
        self.fault: BaseException | None = None
        client = {"bootstrap.servers": nodes.bootstrap_servers, "log_level": 0}
        self._group = Consumer({**client, "group.id": name})
        self.producer = Producer(
            {**client, "transactional.id": name, "linger.ms": 0, "reconnect.backoff.max.ms": 100}
        )
        self.producer.init_transactions(CALL_S)

    def open(self) -> None:
        """Write everything, without ending the transaction."""
        self.producer.begin_transaction()
        for partition in range(PARTITIONS):
            self.producer.produce(TOPIC, self.name, partition=partition)
        position = TopicPartition(SOURCE, 0, 1)
        metadata = self._group.consumer_group_metadata()
        self.producer.send_offsets_to_transaction([position], metadata, CALL_S)
        assert self.producer.flush(CALL_S) == 0
        self._group.close()

    def coordinator(self) -> int:
        request = FindCoordinatorRequest(
            key_type=KEY_TYPE_TRANSACTION, coordinator_keys=[self.name]
        )
        answer = self.nodes[self.nodes.any()].ask(request)
        return answer.coordinators[0].node_id

    def commit(self) -> threading.Thread:
        """Begin to commit; the thread ends with the acknowledgement."""

        def run() -> None:
            try:
                self.producer.commit_transaction(WAIT_S)
            except BaseException as error:
                self.fault = error

        thread = threading.Thread(target=run)
        thread.start()
        return thread


def settle(payment: Payment, killed_at: float) -> float:
    """Wait until the outcome is visible in all partitions; returns that time, relative to the
    kill."""
    bootstrap = payment.nodes.bootstrap_servers
    # A leader that has just started may not know the high watermark yet.
    wait_until(
        lambda: read_committed(bootstrap)[payment.name] == PARTITIONS,
        timeout_s=WAIT_S,
        what="everything is read everywhere",
    )
    # UNSTABLE_OFFSET_COMMIT is returned until the offset is final.
    assert position_of(bootstrap, payment.name) == 1
    took_s = time.monotonic() - killed_at
    # The next transaction does not get CONCURRENT_TRANSACTIONS for ever.
    payment.producer.begin_transaction()
    payment.producer.produce(TOPIC, f"{payment.name}-next", partition=0)
    payment.producer.commit_transaction(WAIT_S)
    return took_s


@pytest.mark.slow
def test_a_commit_goes_through_whoever_dies_in_the_midst_of_it(
    tmp_path: Path, report: Report
) -> None:
    with running_cluster(tmp_path) as nodes:
        make_topics(nodes)
        payment = Payment(nodes, "warm-up")
        payment.open()
        payment.commit().join(WAIT_S)
        for victim in ("router", "worker", "marked", "coordinator"):
            payment = Payment(nodes, victim)
            payment.open()
            node_id = payment.coordinator()
            if victim == "marked":
                leaders = (nodes.leader_of(TOPIC, index) for index in range(PARTITIONS))
                node_id = next(leader for leader in leaders if leader != node_id)
            committing = payment.commit()
            killed_at = time.monotonic()
            if victim in ("router", "worker"):
                nodes[node_id].kill_process(f"{victim}-0")
            else:
                nodes[node_id].kill()
            committing.join(WAIT_S)
            acknowledged_s = time.monotonic() - killed_at
            assert not committing.is_alive(), "the commit is stuck"
            assert payment.fault is None
            settled_s = settle(payment, killed_at)
            report(
                f"{victim} of node {node_id} killed: acknowledged after {acknowledged_s:.2f} s,"
                f" settled and read everywhere after {settled_s:.2f} s"
            )
            if victim in ("router", "worker"):
                nodes[node_id].wait_until_ready()
            else:
                nodes[node_id].start()
            for topic in (TOPIC, "__transaction_state", "__consumer_offsets"):
                nodes.wait_until_whole(topic)


@pytest.mark.slow
def test_nothing_is_torn_or_stuck_when_nodes_are_killed(tmp_path: Path, report: Report) -> None:
    with running_cluster(tmp_path) as nodes:
        make_topics(nodes)

        def kill(node_id: int) -> None:
            nodes[node_id].kill()
            nodes[node_id].start()
            nodes.wait_until_whole(TOPIC)

        kills: list[Callable[[], None]] = [partial(kill, node_id) for node_id in range(KILLS)]
        report(as_text(run_banks_while_killing(nodes.bootstrap_servers, kills)))
