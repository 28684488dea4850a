"""A well-behaved client that works while others misbehave, and records every disturbance.

It produces a numbered record every few milliseconds and reads all of them. It records failed
deliveries, lost or duplicated records, errors of the library, and slow records. It runs in its own
thread from `with` to the end of the block.
"""

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

INTERVAL_S = 0.005
DELIVERY_TIMEOUT_MS = 30_000


class BackgroundClient:
    """Produces and consumes until the block ends; `complaints` should be empty then."""

    def __init__(
        self, bootstrap: str, topic: str, properties: Mapping[str, Any] | None = None
    ) -> None:
        """`topic` exists, has one partition, and is used by no other client. `properties`: of both
        clients, to log in."""
        self.complaints: list[str] = []
        self.slowest_s = 0.0
        self.produced_count = 0
        self.consumed_count = 0
        self._topic = topic
        self._measured_from: int | None = None
        self._sent_s: dict[int, float] = {}
        common = {**(properties or {}), "bootstrap.servers": bootstrap, "error_cb": self._on_error}
        self._producer = Producer(
            {
                **common,
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            }
        )
        self._consumer = Consumer(
            {**common, "group.id": f"{topic}-witness", "enable.auto.commit": False}
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness")

    def __enter__(self) -> Self:
        self._consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()
        del self._producer  # which ends its threads: a producer has nothing to close it with

    def _run(self) -> None:
        while not self._stopping.is_set():
            number = self.produced_count
            self._sent_s[number] = time.monotonic()
            self._producer.produce(self._topic, b"%d" % number, on_delivery=self._on_delivery)
            self.produced_count += 1
            self._producer.poll(0)
            self._read(INTERVAL_S)
        left = self._producer.flush(DELIVERY_TIMEOUT_MS / 1000)
        if left:
            self.complaints.append(f"{left} records were not delivered")
        deadline_s = time.monotonic() + DELIVERY_TIMEOUT_MS / 1000
        while self.consumed_count < self.produced_count and time.monotonic() < deadline_s:
            self._read(0.1)
        if self.consumed_count != self.produced_count:
            self.complaints.append(f"read {self.consumed_count} of {self.produced_count} records")

    def _read(self, timeout_s: float) -> None:
        for message in self._consumer.consume(1000, timeout_s):
            if message.error() is not None:
                self.complaints.append(f"consumer: {message.error()}")
            elif message.value() != b"%d" % self.consumed_count:
                self.complaints.append(f"{message.value()!r} for record {self.consumed_count}")
            else:
                taken_s = time.monotonic() - self._sent_s.pop(self.consumed_count)
                if self._measured_from is None:
                    # librdkafka begins to read half a second after it was told to.
                    self._measured_from = self.produced_count
                elif self.consumed_count >= self._measured_from:
                    self.slowest_s = max(self.slowest_s, taken_s)
                self.consumed_count += 1

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.complaints.append(f"delivery: {error}")

    def _on_error(self, error: KafkaError) -> None:
        self.complaints.append(f"client: {error}")
