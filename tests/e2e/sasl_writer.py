"""A process that writes with kafka-python or aiokafka every 50 ms until an error, which it prints.

`python -m tests.e2e.sasl_writer LIBRARY FILE`: the file has the arguments of the producer, and of
this process its `topic` and, for OAUTHBEARER, the file where its `token` is. Both libraries leave
sockets and threads behind when they are refused: here they end with the process.
"""

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokenProvider

PACE_S = 0.05
SEND_S = 3.0
"""A record is written in this time, or not at all."""


class PythonTokens(PythonTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = Path(path)

    def token(self) -> str:
        return self._path.read_text()


class AioTokens(AioTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def token(self) -> str:
        return self._path.read_text()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def write_with_python(topic: str, arguments: dict[str, Any]) -> None:
    producer = KafkaProducer(max_block_ms=SEND_S * 1000, **arguments)
    producer.send(topic, b"x").get(SEND_S)
    say("written")
    while True:
        producer.send(topic, b"x").get(SEND_S)
        time.sleep(PACE_S)


async def write_with_aio(topic: str, arguments: dict[str, Any]) -> None:
    producer = AIOKafkaProducer(**arguments)
    await producer.start()
    await producer.send_and_wait(topic, b"x")
    say("written")
    while True:
        await asyncio.wait_for(producer.send_and_wait(topic, b"x"), SEND_S)
        await asyncio.sleep(PACE_S)


def main() -> None:
    library, file = sys.argv[1:]
    arguments = json.loads(Path(file).read_text())
    topic, token = arguments.pop("topic"), arguments.pop("token", "")
    logging.basicConfig(level=logging.WARNING)
    is_python = library == "kafka-python"
    if token:
        arguments["sasl_oauth_token_provider"] = (PythonTokens if is_python else AioTokens)(token)
    try:
        if is_python:
            write_with_python(topic, arguments)
        else:
            asyncio.run(write_with_aio(topic, arguments))
    except Exception as error:
        say(f"{type(error).__name__}: {error}")
    # Without the threads of kafka-python, and without aiokafka's wait for what is not sent.
    os._exit(0)


if __name__ == "__main__":
    main()
