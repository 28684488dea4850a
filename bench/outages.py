"""A producer with a steady load, and the longest time without an acknowledgement."""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

RATE = 1_000
"""Records a second."""
READ_TIMEOUT_S = 60.0
FLUSH_TIMEOUT_S = 120.0


class SteadyProducer(threading.Thread):
    """Sends numbered records at RATE to partition 0 of a topic until `finish`.

    Idempotent, acks=all, otherwise librdkafka's defaults."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self._topic = topic
        self._ending = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self.times: list[float] = []
        """Monotonic times of the acknowledgements."""
        self._acknowledged: set[int] = set()
        self.failed = 0
        """Records that the producer gave up."""

    def run(self) -> None:
        began, number = time.monotonic(), 0
        while not self._ending.is_set():
            due = int((time.monotonic() - began) * RATE)
            while number < due:
                try:
                    self._producer.produce(
                        self._topic,
                        b"%d" % number,
                        partition=0,
                        on_delivery=self._on_delivery(number),
                    )
                except BufferError:
                    break
                number += 1
            self._producer.poll(0.001)
        self._producer.flush(FLUSH_TIMEOUT_S)

    def _on_delivery(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self.failed += 1
            else:
                self._acknowledged.add(number)
                self.times.append(time.monotonic())

        return note

    def wait_for_progress(self) -> None:
        """Wait until a record that is sent from now on is acknowledged."""
        mark = len(self.times) + RATE // 2
        deadline = time.monotonic() + READ_TIMEOUT_S
        while len(self.times) < mark:
            if time.monotonic() > deadline:
                raise RuntimeError("nothing is acknowledged any more")
            time.sleep(0.01)

    def longest_gap_s(self, since: float) -> float:
        """The longest time without an acknowledgement, among those that ended after `since`."""
        times = self.times[max(bisect_left(self.times, since) - 1, 0) :]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def finish(self) -> str:
        """Stop, read the log and return the difference to the acknowledged records; "" if none."""
        self._ending.set()
        self.join(2 * FLUSH_TIMEOUT_S)
        seen = self._read_back()
        faults = {
            "given up": self.failed,
            "lost": len(self._acknowledged - set(seen)),
            "doubled": len(seen) - len(set(seen)),
            "out of order": sum(after < before for before, after in pairwise(seen)),
        }
        return ", ".join(f"{count} {what}" for what, count in faults.items() if count)

    def _read_back(self) -> list[int]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": f"read-{self._topic}",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        partition = TopicPartition(self._topic, 0, OFFSET_BEGINNING)
        seen: list[int] = []
        try:
            consumer.assign([partition])
            _, end = consumer.get_watermark_offsets(partition, timeout=READ_TIMEOUT_S)
            deadline, position = time.monotonic() + READ_TIMEOUT_S, 0
            while position < end:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{position} of {end} records can be read")
                for message in consumer.consume(10_000, 0.5):
                    if message.error() is None:
                        position = (message.offset() or 0) + 1
                        seen.append(int(message.value() or b"-1"))
        finally:
            consumer.close()
        return seen
