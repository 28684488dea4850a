"""Which of several bootstrap addresses is used, when some accept connections and never answer."""

import socket
import threading
import time
from collections.abc import Iterator

import click
import pytest

from odradek.node.blocking_client import BlockingClient
from odradek.node.cli.bootstrap import (
    REPLACED_S,
    NoBrokerAnswersError,
    address_text,
    first_to_answer,
)
from odradek.node.cli.connection import make_connection
from tests.node.cli.conftest import Run
from tests.support.ports import free_port
from tests.support.stand_in_cluster import StandInCluster, stand_in_cluster
from tests.support.waiting import wait_until

# Of each case below; a command that asks the silent address first would take 30 s.
CONNECTED_S = 2.0


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address that accepts connections and never answers, as that of a frozen process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


@pytest.fixture
def two() -> Iterator[StandInCluster]:
    with stand_in_cluster(2) as cluster:
        yield cluster


def test_an_address_that_does_not_answer_delays_the_next_for_a_moment_only(
    silent: tuple[str, int], two: StandInCluster
) -> None:
    connection = make_connection(f"{address_text(silent)},{two.bootstrap}", 30.0, None, ())
    connection.prepare()
    began = time.monotonic()
    address, client = first_to_answer(connection.connect, connection.addresses, 30.0)
    client.close()
    assert address in connection.addresses[1:]
    assert time.monotonic() - began < CONNECTED_S


def test_the_first_address_is_used_if_its_broker_answers(two: StandInCluster) -> None:
    connection = make_connection(two.bootstrap, 30.0, None, ())
    connection.prepare()
    for _ in range(5):
        address, client = first_to_answer(connection.connect, connection.addresses, 30.0)
        client.close()
        assert address == connection.addresses[0]


def test_all_failures_are_named_as_soon_as_there_is_no_hope() -> None:
    refused = [("127.0.0.1", free_port()), ("127.0.0.1", free_port())]
    began = time.monotonic()
    with pytest.raises(NoBrokerAnswersError) as caught:
        first_to_answer(BlockingClient, refused, 30.0)
    assert time.monotonic() - began < REPLACED_S + CONNECTED_S
    assert str(caught.value).count("Connection refused") == 2


@pytest.mark.parametrize("error", [ConnectionRefusedError, ConnectionResetError])
def test_a_router_that_is_being_replaced_is_waited_for(
    two: StandInCluster, error: type[OSError]
) -> None:
    connection = make_connection(two.bootstrap, 30.0, None, ())
    connection.prepare()
    attempts = []

    def connect(host: str, port: int, timeout_s: float) -> BlockingClient:
        attempts.append(port)
        if len(attempts) < 3:
            raise error
        return connection.connect(host, port, timeout_s)

    first = connection.addresses[0]
    address, client = first_to_answer(connect, [first], 30.0)
    client.close()
    assert (address, attempts) == (first, 3 * [first[1]])


def test_addresses_that_do_not_answer_are_waited_for_until_the_timeout(
    silent: tuple[str, int],
) -> None:
    refused = ("127.0.0.1", free_port())
    with pytest.raises(NoBrokerAnswersError) as caught:
        first_to_answer(BlockingClient, [silent, refused], 0.4)
    assert "Connection refused" in str(caught.value.failures[refused])
    assert f"{address_text(silent)}: " in str(caught.value)
    assert isinstance(caught.value.failures[silent], TimeoutError)


def test_refused_credentials_are_the_error_only_if_no_broker_answers(two: StandInCluster) -> None:
    def connect(host: str, port: int, timeout_s: float) -> BlockingClient:
        if port == refusing:
            raise click.ClickException("SASL authentication failed")
        return BlockingClient(host, port, timeout_s)

    addresses = make_connection(two.bootstrap, 30.0, None, ()).addresses
    refusing = addresses[0][1]
    address, client = first_to_answer(connect, addresses, 30.0)
    client.close()
    assert address == addresses[1]
    with pytest.raises(click.ClickException, match="SASL authentication failed"):
        first_to_answer(connect, addresses[:1], 30.0)


def test_a_connection_that_comes_too_late_is_closed(two: StandInCluster) -> None:
    late = threading.Event()
    closed: list[BlockingClient] = []

    class Counted(BlockingClient):
        def close(self) -> None:
            super().close()
            closed.append(self)

    def connect(host: str, port: int, timeout_s: float) -> BlockingClient:
        if port == first[1]:
            late.wait(30)
        return Counted(host, port, timeout_s)

    first, second = make_connection(two.bootstrap, 30.0, None, ()).addresses
    address, client = first_to_answer(connect, [first, second], 30.0)
    assert address == second
    late.set()
    wait_until(lambda: len(closed) == 1)
    client.close()


def test_an_ipv6_address_has_brackets() -> None:
    assert address_text(("::1", 9092)) == "[::1]:9092"
    assert address_text(("kafka", 9092)) == "kafka:9092"


@pytest.mark.e2e
@pytest.mark.parametrize(
    "command",
    [
        ("topic", "list"),
        ("cluster", "status"),
        ("group", "list"),
        ("produce", "a-topic", "value"),
        ("consume", "a-topic"),
        ("bench", "produce", "--records", "10", "--topic", "a-topic"),
    ],
    ids=" ".join,
)
def test_a_command_does_not_wait_for_a_frozen_first_address(
    command: tuple[str, ...], silent: tuple[str, int], bootstrap: str, odradek: Run, kafka: Run
) -> None:
    kafka("topic", "create", "a-topic", "--if-not-exists")
    began = time.monotonic()
    ran = odradek(*command, bootstrap=f"{address_text(silent)},{bootstrap}")
    assert ran.exit_code == 0, ran.stderr
    # With what the command itself does.
    assert time.monotonic() - began < CONNECTED_S + 3


def test_the_timeout_is_that_of_the_whole_command(silent: tuple[str, int], odradek: Run) -> None:
    for command in (("topic", "list"), ("produce", "t", "x"), ("consume", "t"), ("txn", "list")):
        began = time.monotonic()
        ran = odradek(*command, "--timeout", "0.5", bootstrap=address_text(silent))
        assert time.monotonic() - began < CONNECTED_S, command
        assert ran.exit_code == 1
        assert "cannot reach the cluster" in ran.stderr
