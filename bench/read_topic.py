"""A consumer of librdkafka that reads a topic from its start.

    python -m bench.read_topic BOOTSTRAP TOPIC RECORDS

Prints records, records_per_second and mb_per_second (2**20 bytes of values) as JSON. The time
begins with the first record, without the rebalance of the group.
"""

import json
import time
from uuid import uuid4

import click
from confluent_kafka import Consumer

_AT_ONCE = 10_000
_WAIT_S = 1.0
_READ_S = 300.0


@click.command()
@click.argument("bootstrap")
@click.argument("topic")
@click.argument("records", type=click.IntRange(min=1))
def main(bootstrap: str, topic: str, records: int) -> None:
    """Consume so many records in a group of one member."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{uuid4().hex[:8]}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    count = byte_count = 0
    began = time.perf_counter()
    until = began + _READ_S
    while count < records:
        messages = consumer.consume(_AT_ONCE, _WAIT_S)
        now = time.perf_counter()
        if now > until:
            raise click.ClickException(f"{count} of {records} records in {_READ_S:.0f} s")
        if not count:
            began = now
        for message in messages:
            if message.error() is None:
                count += 1
                byte_count += len(message.value() or b"")
    elapsed = time.perf_counter() - began
    consumer.close()
    told = {
        "records": count,
        "records_per_second": count / elapsed,
        "mb_per_second": byte_count / elapsed / (1 << 20),
    }
    click.echo(json.dumps(told))


if __name__ == "__main__":
    main()
