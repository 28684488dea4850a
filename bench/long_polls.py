"""Consumers with nothing to read: long polls of 500 ms at the end of a partition, again and again.

    python -m bench.long_polls BOOTSTRAP TOPIC CONSUMERS SECONDS

Fetch version 4, which has no sessions, one connection for each consumer. Prints the fetches a
second as JSON when it ends, and a line when all consumers wait.
"""

import json
import resource
import select
import socket
import time
from struct import Struct
from typing import Final

import click

from odradek.protocol.apis import ApiKey
from odradek.protocol.codec import encode_request, encode_request_header
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

WAIT_MS: Final = 500
_VERSION: Final = 4
_RESPONSE_BYTES_MAX: Final = 4096
_pack_length = Struct(">i").pack


@click.command()
@click.argument("bootstrap")
@click.argument("topic")
@click.argument("consumers", type=click.IntRange(min=1))
@click.argument("seconds", type=click.FloatRange(min=0))
def main(bootstrap: str, topic: str, consumers: int, seconds: float) -> None:
    """Fetch from an empty partition 0."""
    _, descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))
    host, _, port = bootstrap.rpartition(":")
    request = _request(topic)
    waiting: dict[int, socket.socket] = {}
    epoll = select.epoll()
    for _ in range(consumers):
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting[connection.fileno()] = connection
        epoll.register(connection, select.EPOLLIN)
        connection.send(request)
    click.echo(json.dumps({"waiting": consumers}))
    began, count = time.monotonic(), 0
    while (elapsed_s := time.monotonic() - began) < seconds:
        for descriptor, _ in epoll.poll(1.0):
            connection = waiting[descriptor]
            if not connection.recv(_RESPONSE_BYTES_MAX):
                raise SystemExit("the broker has closed a connection")
            connection.send(request)
            count += 1
    click.echo(json.dumps({"fetches_per_second": count / elapsed_s}))


def _request(topic: str) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    message = FetchRequest(
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    header = encode_request_header(ApiKey.FETCH, _VERSION, 1, "idle")
    frame = b"".join([header, *encode_request(ApiKey.FETCH, _VERSION, message)])
    return _pack_length(len(frame)) + frame


if __name__ == "__main__":
    main()
