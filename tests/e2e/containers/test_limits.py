"""A node with little memory and half a processor, under a steady load."""

import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.e2e.conftest import Report
from tests.e2e.containers.nodes import MIB, ContainerCluster

LIMITS = {
    "mem_limit": 256 * MIB,
    "memswap_limit": 256 * MIB,
    "nano_cpus": 500_000_000,
}
RATE_BYTES = 5_000_000
RECORD_BYTES = 1_000
LOAD_S = 20.0
SHOWN_DEFAULTS = (
    "from odradek.node.machine_defaults import *;"
    "print(usable_processors(), default_worker_count(), default_arena_bytes(is_dev=False))"
)
TOPIC = "orders"
PARTITIONS = 4


class Consumption(threading.Thread):
    """Reads a topic to the end of so many records, and counts its bytes."""

    def __init__(self, bootstrap: str, record_count: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "readers", "log_level": 0}
        )
        self._consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
        self._record_count = record_count
        self.read_count = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set() or self.read_count < self._record_count():
            messages = self._consumer.consume(1_000, 1.0)
            self.read_count += sum(1 for each in messages if each.error() is None)
        self._consumer.close()


def test_it_serves_five_megabytes_a_second_in_256_mib_with_half_a_processor(
    nodes: ContainerCluster, report: Report
) -> None:
    nodes.start([0], voters=[0], limits=LIMITS)
    node = nodes[0]
    assert node.run("python", "-P", "-c", SHOWN_DEFAULTS) == (0, f"1 1 {64 * MIB}\n")
    assert node.run("odradek", "topic", "create", TOPIC, "--partitions", str(PARTITIONS))[0] == 0
    failed: list[str] = []
    acknowledged = 0

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        nonlocal acknowledged
        if error is not None:
            failed.append(str(error))
        acknowledged += 1

    producer = Producer(
        {"bootstrap.servers": node.bootstrap_servers, "linger.ms": 20, "log_level": 0}
    )
    consumption = Consumption(node.bootstrap_servers, lambda: acknowledged)
    consumption.start()
    value = bytes(RECORD_BYTES)
    began = time.monotonic()
    sent = 0
    while (passed_s := time.monotonic() - began) < LOAD_S:
        while sent < passed_s * RATE_BYTES / RECORD_BYTES:
            producer.produce(TOPIC, value, partition=sent % PARTITIONS, on_delivery=on_delivery)
            sent += 1
        producer.poll(0.01)
    assert producer.flush(30) == 0
    took_s = time.monotonic() - began
    consumption.is_over.set()
    consumption.join(60)
    rate = sent * RECORD_BYTES / took_s
    report(f"{rate / 1e6:.2f} MB/s acknowledged; {node.memory()}")
    assert not failed
    assert acknowledged == consumption.read_count == sent
    assert rate > 0.95 * RATE_BYTES
    node.container.reload()
    assert not node.container.attrs["State"]["OOMKilled"]
    code, text = node.run("odradek", "node", "ready")
    assert code == 0, text
    # None of its processes was killed for want of memory, and restarted.
    assert "has exited" not in node.log()
