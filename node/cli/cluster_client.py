"""Questions to a cluster over minutes or hours: nodes may go and come back meanwhile.

What any broker can answer is asked of whoever answers, beginning with the one that did last; what
only one broker knows is asked of that one. Every question may reach the cluster twice if a broker
is lost while it answers, so only such may be asked as do no harm then. PLAINTEXT only.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, Self, TypeVar

import click

from odradek.node.blocking_client import BlockingClient, NotABrokerError, UnencodableRequestError
from odradek.node.cli.connection import CONNECT_TIMEOUT_S, ClusterConnection, split_address
from odradek.protocol.errors import ProtocolError

R = TypeVar("R")

Address = tuple[str, int]

PAUSE_S: Final = 0.2
"""Between two rounds of questions to brokers of which none could answer."""
_FAILURES: Final = (OSError, NotABrokerError, ProtocolError)


class ClusterClient:
    """Connections to the brokers of one cluster, made when they are needed."""

    def __init__(self, connection: ClusterConnection) -> None:
        if not connection.is_plain:
            raise click.ClickException(
                "this command asks brokers over PLAINTEXT only, and security.protocol is"
                f" {connection.properties['security.protocol']}: name a PLAINTEXT listener with"
                " --bootstrap, and leave that property out"
            )
        connection.check_reachable()
        self._timeout_s = connection.timeout_s
        self._bootstrap = [split_address(part.strip()) for part in connection.bootstrap.split(",")]
        self._addresses: dict[int, Address] = {}
        self._askers: dict[Address, BlockingClient] = {}
        self._answered_last = self._bootstrap[0]

    @property
    def timeout_s(self) -> float:
        """The longest wait for an answer."""
        return self._timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """Close all connections; the next question makes new ones. Needed after an interruption,
        when answers may be on their way to questions that nobody asks any more."""
        for asker in self._askers.values():
            asker.close()
        self._askers.clear()

    def learn(self, addresses: Mapping[int, Address]) -> None:
        """These are the brokers' addresses."""
        self._addresses.update(addresses)

    def ask(
        self, request: object, response: type[R], *, again: Callable[[R], bool] = lambda _: False
    ) -> R:
        """The answer of any broker. While `again` says that it is none yet, and while nobody
        answers, it is asked again until the connection's timeout has passed.

        Raises ClickException if nobody answers, or if that cannot be asked.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            reasons = []
            for address in self._everybody():
                try:
                    answer = self._asker(address).ask(request, response)
                except UnencodableRequestError as error:
                    raise click.ClickException(str(error)) from error
                except _FAILURES as error:
                    self._drop(address)
                    reasons.append(f"{address[0]}:{address[1]}: {error}")
                    continue
                self._answered_last = address
                if not again(answer) or time.monotonic() > deadline:
                    return answer
                break
            if reasons and time.monotonic() > deadline:
                raise click.ClickException(f"no broker answers ({'; '.join(reasons)})")
            time.sleep(PAUSE_S)

    def ask_node(self, node_id: int, request: object, response: type[R]) -> R | None:
        """The answer of one broker; None if it does not answer or has no address. Raises
        ClickException if that cannot be asked."""
        address = self._addresses.get(node_id)
        if address is None:
            return None
        # A connection that has been idle may be closed at the other end.
        for _ in range(2):
            was_open = address in self._askers
            try:
                return self._asker(address).ask(request, response)
            except UnencodableRequestError as error:
                raise click.ClickException(str(error)) from error
            except _FAILURES:
                self._drop(address)
                if not was_open:
                    break
        return None

    def _everybody(self) -> list[Address]:
        known = [self._answered_last, *self._bootstrap, *self._addresses.values()]
        return list(dict.fromkeys(known))

    def _asker(self, address: Address) -> BlockingClient:
        asker = self._askers.get(address)
        if asker is None:
            asker = BlockingClient(*address, min(self._timeout_s, CONNECT_TIMEOUT_S))
            asker.wait(self._timeout_s)
            self._askers[address] = asker
        return asker

    def _drop(self, address: Address) -> None:
        asker = self._askers.pop(address, None)
        if asker is not None:
            asker.close()
