"""`odradek trace` against a cluster of one node."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import click
import pytest
from confluent_kafka import Producer

from odradek.node.cli.trace import api_key
from odradek.protocol.apis import ApiKey
from tests.node.cli.conftest import Run


def test_an_api_has_many_spellings() -> None:
    assert api_key("Produce") == api_key("produce") == api_key("0") == ApiKey.PRODUCE
    assert api_key("list-offsets") == api_key("LIST_OFFSETS") == ApiKey.LIST_OFFSETS
    with pytest.raises(click.BadParameter, match="did you mean Produce"):
        api_key("Prodice")
    with pytest.raises(click.BadParameter):
        api_key("12345")


def check_stages(document: dict[str, Any]) -> None:
    """Each part of the worker's lies in the request to it, and the stages add up to the whole."""
    stages = {stage["name"]: stage for stage in document["stages"]}
    own = ("queue", "decode", "worker_request", "answer", "encode", "send")
    assert {*own, "handle"} <= stages.keys()
    # Each is rounded down.
    assert sum(stages[name]["duration_us"] for name in own) <= document["duration_us"] + 1
    request = stages["worker_request"]
    parts = [stage for stage in document["stages"] if stage["parent_index"] >= 0]
    assert [stage["name"] for stage in parts] == [
        *("bus_request", "worker_queue", "append", "commit", "bus_reply")
    ]
    end_us = request["start_us"] + request["duration_us"]
    for part in parts:
        assert part["start_us"] >= request["start_us"]
        assert part["start_us"] + part["duration_us"] <= end_us + 2
    assert stages["append"]["attributes"]["topic"] in document["topics"]
    assert request["attributes"]["worker"] == stages["append"]["process"]


@contextmanager
def producing(bootstrap: str) -> Iterator[str]:
    """A producer of `topic-of-NAME` that goes on until the end; its client id NAME."""
    name = f"traced-{uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": name, "log_level": 0})
    is_over = threading.Event()

    def produce() -> None:
        while not is_over.wait(0.05):
            producer.produce(f"topic-of-{name}", b"x")
            producer.flush(30)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield name
    finally:
        is_over.set()
        thread.join()


@pytest.mark.e2e
def test_the_first_requests_that_match_are_shown(kafka: Run, bootstrap: str) -> None:
    with producing(bootstrap) as name:
        wanted = ("--client-id", name, "--api", "produce", "--topic", f"topic-of-{name}")
        documents = kafka("trace", *wanted, "-n", "2", "-o", "json").json_lines()
        text = kafka("trace", *wanted, "-n", "1", "--slower-than", "0.001", "--rate", "1")
    assert [(each["api"], each["client_id"]) for each in documents] == [("Produce", name)] * 2
    for each in documents:
        check_stages(each)
    assert text.exit_code == 0
    assert text.stdout.count("\n") == 1
    assert f"client {name}" in text.stdout
    assert "Tracing on brokers 0. Ctrl-C ends it." in text.stderr


@pytest.mark.e2e
def test_without_a_request_nothing_is_printed(kafka: Run) -> None:
    ran = kafka("trace", "--client-id", "nobody", "--for", "300ms", "-o", "json")
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "", "")
