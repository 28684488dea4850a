"""Compares bulk produce and fetch over TLS with Apache Kafka's, and with both brokers' plaintext.

    python -m bench.tls --kafka-jars FOLDER [--rounds 3] [--seconds 4]

One connection, TLS 1.3, AES-256-GCM, 1 MiB requests with several in flight. The client prepares one
request and counts responses, so that the broker and the ciphers are what is measured. Both brokers
run all the time and are loaded in turn. Prints medians of megabytes per second and CPU, and ratios.
"""

import socket
import ssl
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import click
import trustme
from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c

from bench import brokers, processes
from bench.brokers import Broker
from bench.options import REPOSITORY, log_progress, with_kafka_jars, with_rounds, with_warm_up

RECORD_BYTES = 1024
RECORDS_OF_A_BATCH = 900
PRODUCES_IN_FLIGHT = 5
FETCHES_IN_FLIGHT = 2
FETCH_BYTES = 4 << 20


class RawClient:
    """One connection that sends prepared frames and reads whole responses."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 60.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        self._buffer = memoryview(bytearray(FETCH_BYTES * 2))

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        """The next response, until the following call."""
        self._fill(4)
        (length,) = struct.unpack_from(">i", self._buffer)
        self._fill(length)
        return self._buffer[:length]

    def _fill(self, size: int) -> None:
        done = 0
        while done < size:
            count = self._socket.recv_into(self._buffer[done:size])
            if not count:
                raise ConnectionError("the broker closed the connection")
            done += count


def framed(api_key: int, version: int, body: bytes) -> bytes:
    """A request with header version 1."""
    head = struct.pack(">hhih", api_key, version, 1, 4) + b"load"
    return struct.pack(">i", len(head) + len(body)) + head + body


def record_batch() -> bytes:
    """A batch of format 2, without an idempotent producer."""
    value = bytes(RECORD_BYTES)
    records = bytearray()
    for offset in range(RECORDS_OF_A_BATCH):
        body = b"\0\0" + varint(offset) + varint(-1) + varint(len(value)) + value + b"\0"
        records += varint(len(body)) + body
    last, now_ms = RECORDS_OF_A_BATCH - 1, time.time_ns() // 1_000_000
    head = struct.pack(">hiqqqhii", 0, last, now_ms, now_ms, -1, -1, -1, last + 1)
    checked = head + records
    inner = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(inner)) + inner


def varint(value: int) -> bytes:
    """Zigzag, as in records."""
    left = value << 1 ^ value >> 63
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def produce_frame(topic: str) -> bytes:
    """Produce v3 with acks=all."""
    batch = record_batch()
    name = topic.encode()
    body = struct.pack(">hhiih", -1, -1, 30_000, 1, len(name)) + name
    return framed(0, 3, body + struct.pack(">iii", 1, 0, len(batch)) + batch)


def fetch_frame(topic: str) -> bytes:
    """Fetch v4 of the start of partition 0."""
    name = topic.encode()
    head = struct.pack(">iiiibih", -1, 100, 1, FETCH_BYTES, 0, 1, len(name)) + name
    return framed(1, 4, head + struct.pack(">iiqi", 1, 0, 0, FETCH_BYTES))


def pipelined(
    client: RawClient, frame: bytes, in_flight: int, seconds: float
) -> tuple[int, int, float]:
    """Keep that many requests in flight: responses, their bytes, and the seconds it took."""
    for _ in range(in_flight):
        client.send(frame)
    count = size = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        size += len(client.receive())
        client.send(frame)
        count += 1
    took = time.perf_counter() - began
    for _ in range(in_flight):
        client.receive()
    return count, size, took


class Measurement:
    """Both loads against one broker, with and without TLS."""

    def __init__(self, context: ssl.SSLContext, seconds: float) -> None:
        self._context = context
        self._seconds = seconds
        self.rates: dict[tuple[str, str], list[float]] = {}
        self.costs: dict[tuple[str, str], list[float]] = {}

    def run(self, broker: Broker) -> None:
        topic = f"tls-{uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        produce, fetch = produce_frame(topic), fetch_frame(topic)
        self._wait_for_leader(broker, produce)
        sizes = {
            "produce": lambda count, _: count * len(produce),
            "fetch": lambda _, size: size,
        }
        for load, frame, in_flight in (
            ("produce", produce, PRODUCES_IN_FLIGHT),
            ("fetch", fetch, FETCHES_IN_FLIGHT),
        ):
            for kind, port, context in (
                ("TLS", broker.tls_port, self._context),
                ("plaintext", broker.port, None),
            ):
                self._measure(
                    broker, f"{load}, {kind}", port, context, frame, in_flight, sizes[load]
                )
        admin.delete_topics([topic])[topic].result(30)

    def _measure(
        self,
        broker: Broker,
        case: str,
        port: int,
        context: ssl.SSLContext | None,
        frame: bytes,
        in_flight: int,
        bytes_of: Callable[[int, int], int],
    ) -> None:
        client = RawClient(port, context)
        before = processes.cpu_seconds(broker.pid)
        count, size, took = pipelined(client, frame, in_flight, self._seconds)
        used = processes.cpu_seconds(broker.pid) - before
        client.close()
        megabytes = bytes_of(count, size) / 1e6
        self.rates.setdefault((case, broker.name), []).append(megabytes / took)
        self.costs.setdefault((case, broker.name), []).append(used / megabytes * 1e3)
        log_progress(f"{broker.name:8} {case}: {megabytes / took:.0f} MB/s")

    def _wait_for_leader(self, broker: Broker, frame: bytes) -> None:
        client = RawClient(broker.port, None)
        deadline = time.monotonic() + 30
        while True:
            client.send(frame)
            answer = bytes(client.receive())
            # v3: correlation, topics, name, partitions, index, error, offset, ...
            name_bytes = int.from_bytes(answer[8:10], "big")
            (error,) = struct.unpack_from(">h", answer, 10 + name_bytes + 8)
            if not error:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{broker.name} answers a produce with error {error}")
            time.sleep(0.05)
        client.close()


@click.command()
@with_kafka_jars
@with_rounds
@click.option("--seconds", default=4.0, show_default=True, help="Of each case.")
@with_warm_up
def main(kafka_jars: Path, rounds: int, seconds: float, warm_up: float) -> None:
    """Measure Odradek beside Kafka over TLS and print a table of ratios."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.ECDSA)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odradek-tls-")))
        store = directory / "broker.pem"
        store.write_bytes(_pkcs8(certificate))
        both = (
            stack.enter_context(brokers.kafka(kafka_jars, directory / "kafka", store)),
            stack.enter_context(brokers.odradek(REPOSITORY, directory / "odradek", store)),
        )
        for broker in both:
            Measurement(context, warm_up / 4).run(broker)
        measured = Measurement(context, seconds)
        for number in range(rounds):
            for broker in both if number % 2 == 0 else reversed(both):
                measured.run(broker)
    click.echo("| case | Kafka | Odradek | ratio | CPU ms/MB, Kafka | Odradek |")
    click.echo("| --- | --- | --- | --- | --- | --- |")
    for load in ("produce, TLS", "fetch, TLS", "produce, plaintext", "fetch, plaintext"):
        kafka, ours = (statistics.median(measured.rates[load, each.name]) for each in both)
        costs = [statistics.median(measured.costs[load, each.name]) for each in both]
        click.echo(
            f"| {load} | {kafka:.0f} MB/s | {ours:.0f} MB/s | {ours / kafka:.2f} |"
            f" {costs[0]:.2f} | {costs[1]:.2f} |"
        )


def _pkcs8(certificate: trustme.LeafCert) -> bytes:
    """Key and chain in PEM; Java reads keys in PKCS#8 only."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    chain = b"".join(each.bytes() for each in certificate.cert_chain_pems)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + chain


if __name__ == "__main__":
    main()
