"""One record a request with librdkafka: so many requests are in flight, each with a single record.

    python -m bench.one_record BOOTSTRAP TOPIC RECORDS IN_FLIGHT

Prints records, records_per_second, p50_ms and p99_ms as JSON.
"""

import json
import time

import click
from confluent_kafka import KafkaError, Message, Producer

RECORD_BYTES = 100
_DRAIN_S = 60.0


@click.command()
@click.argument("bootstrap")
@click.argument("topic")
@click.argument("records", type=click.IntRange(min=1))
@click.argument("in_flight", type=click.IntRange(min=1))
def main(bootstrap: str, topic: str, records: int, in_flight: int) -> None:
    """Produce with acks=all, without batches, as soon as there is a request left."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "batch.num.messages": 1,
            "max.in.flight.requests.per.connection": in_flight,
        }
    )
    value = b"x" * RECORD_BYTES
    latencies: list[float] = []
    failures: list[str] = []
    pending = 0

    def send() -> None:
        nonlocal pending
        began = time.perf_counter()

        def delivered(error: KafkaError | None, _message: Message) -> None:
            nonlocal pending
            pending -= 1
            latencies.append(time.perf_counter() - began)
            if error is not None:
                failures.append(error.str())

        pending += 1
        producer.produce(topic, value, partition=0, on_delivery=delivered)

    send()
    producer.flush(_DRAIN_S)
    latencies.clear()
    start = time.perf_counter()
    for _ in range(records):
        while pending >= in_flight:
            producer.poll(1.0)
        send()
        producer.poll(0)
    left = producer.flush(_DRAIN_S)
    elapsed = time.perf_counter() - start
    if failures or left:
        raise click.ClickException(failures[0] if failures else f"{left} records are not answered")
    ordered = sorted(latencies)
    told = {
        "records": records,
        "records_per_second": records / elapsed,
        "p50_ms": 1000 * ordered[records // 2],
        "p99_ms": 1000 * ordered[records * 99 // 100],
    }
    click.echo(json.dumps(told))


if __name__ == "__main__":
    main()
