"""Connects to the first broker that answers, of several addresses.

An address may accept connections and never answer: its process is frozen, or a load balancer has no
broker behind it. So the attempts run side by side, each begun ATTEMPT_DELAY_S after the one before
or as soon as that has failed (as RFC 8305 does for the addresses of one host), and an address
counts only when it has answered an ApiVersions request. Called by cluster_client.py and
connection.py.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

import click

from odradek.node.blocking_client import BlockingClient, ConnectionEndedError
from odradek.protocol.apis import ApiKey

Address: TypeAlias = tuple[str, int]
Connect: TypeAlias = Callable[[str, int, float], BlockingClient]
"""Host, port and timeout in seconds -> a connection that is authenticated."""

ATTEMPT_DELAY_S: Final = 0.25
"""RFC 8305's recommended delay between two attempts."""
REPLACED_S: Final = 2.0
"""How long an address is tried again that refuses or closes a connection: a router that died is
replaced within a second or two."""


class NoBrokerAnswersError(Exception):
    """None of the addresses answers; `failures` says why."""

    def __init__(self, failures: Mapping[Address, Exception]) -> None:
        super().__init__(failure_text(failures))
        self.failures = failures


class _Attempts:
    """The attempts of one call. A connection that comes too late is closed."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._results: SimpleQueue[tuple[Address, BlockingClient | Exception]] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_over = False

    def begin(self, address: Address, timeout_s: float) -> None:
        # A daemon: a process does not wait for an address that never answers.
        threading.Thread(target=self._try, args=(address, timeout_s), daemon=True).start()

    def _try(self, address: Address, timeout_s: float) -> None:
        result: BlockingClient | Exception
        try:
            result = _connected_again(self._connect, address, timeout_s)
        except Exception as error:
            result = error
        with self._lock:
            if not self._is_over:
                self._results.put((address, result))
            elif isinstance(result, BlockingClient):
                result.close()

    def next_result(self, timeout_s: float) -> tuple[Address, BlockingClient | Exception] | None:
        """None after the timeout."""
        try:
            return self._results.get(timeout=max(0.0, timeout_s))
        except Empty:
            return None

    def end(self) -> None:
        """Close the connections that nobody has taken, now and later."""
        with self._lock:
            self._is_over = True
        while (late := self.next_result(0.0)) is not None:
            if isinstance(late[1], BlockingClient):
                late[1].close()


def connected(connect: Connect, address: Address, timeout_s: float) -> BlockingClient:
    """A connection to a broker that has answered ApiVersions. Raises as `connect` does."""
    client = connect(*address, timeout_s)
    try:
        client.wait(timeout_s)
        client.serves(ApiKey.API_VERSIONS)
    except BaseException:
        client.close()
        raise
    return client


def _connected_again(connect: Connect, address: Address, timeout_s: float) -> BlockingClient:
    """As `connected`. A connection that is refused, or breaks, is made again for REPLACED_S at
    most."""
    end = time.monotonic() + min(timeout_s, REPLACED_S)
    while True:
        try:
            return connected(connect, address, timeout_s)
        except (ConnectionError, ConnectionEndedError):
            if time.monotonic() + ATTEMPT_DELAY_S >= end:
                raise
        time.sleep(ATTEMPT_DELAY_S)


def first_to_answer(
    connect: Connect, addresses: Iterable[Address], timeout_s: float
) -> tuple[Address, BlockingClient]:
    """The first address of which the broker answers, and the connection to it.

    Raises NoBrokerAnswersError when every attempt has failed or after the timeout; ClickException
    if no broker answers and one has refused the credentials.
    """
    waiting = deque(addresses)
    failures: dict[Address, Exception] = {}
    running: list[Address] = []
    attempts = _Attempts(connect)
    deadline = time.monotonic() + timeout_s
    try:
        while waiting or running:
            left_s = deadline - time.monotonic()
            if waiting and left_s > 0:
                running.append(waiting.popleft())
                attempts.begin(running[-1], left_s)
            found = attempts.next_result(min(ATTEMPT_DELAY_S, left_s) if waiting else left_s)
            if found is not None:
                address, result = found
                if isinstance(result, BlockingClient):
                    return address, result
                running.remove(address)
                failures[address] = result
            elif deadline <= time.monotonic():
                break
    finally:
        attempts.end()
    silent = TimeoutError(f"no answer within {timeout_s:.3g} s")
    failures |= dict.fromkeys([*running, *waiting], silent)
    for error in failures.values():
        if isinstance(error, click.ClickException):
            raise error
    raise NoBrokerAnswersError(failures)


def failure_text(failures: Mapping[Address, Exception]) -> str:
    """Each address and why it cannot be used."""
    return "; ".join(f"{address_text(each)}: {_reason(e)}" for each, e in failures.items())


def address_text(address: Address) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
