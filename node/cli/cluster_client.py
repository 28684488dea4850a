"""Requests to a cluster over minutes or hours: brokers may go and come back meanwhile.

A request that any broker can answer goes to one that answers, beginning with the last that did; a
request for one broker goes to that one. A request may reach the cluster twice if a broker is lost
while it answers, so only such requests are sent as do no harm then.
"""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, ParamSpec, Protocol, Self, TypeVar

import click

from odradek.node.blocking_client import (
    BlockingClient,
    NotABrokerError,
    UnencodableRequestError,
    UnsupportedApiError,
)
from odradek.node.cli.bootstrap import (
    Address,
    NoBrokerAnswersError,
    connected,
    failure_text,
    first_to_answer,
)
from odradek.node.cli.connection import (
    CONNECT_TIMEOUT_S,
    ClusterConnection,
    unreachable,
    with_connection,
)
from odradek.node.cli.output import with_output
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from odradek.protocol.types import Request

P = ParamSpec("P")
R = TypeVar("R")

PAUSE_S: Final = 0.2
"""Between two attempts to reach brokers of which none answered."""
TIMEOUT_MIN_S: Final = 0.5
"""Of a request at the end of the command's time: brokers answer within milliseconds."""
GROUP: Final = 0
TRANSACTION: Final = 1
"""Key types of FindCoordinator."""
COORDINATOR_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""The coordinator moves: another attempt may find it."""
_FAILURES: Final = (OSError, NotABrokerError, ProtocolError)


class RequestResult(Protocol):
    """A response, or a part of one, that may be an error; most have an `error_message` as well."""

    @property
    def error_code(self) -> int: ...


def error_text(result: RequestResult) -> str:
    """The broker's message, or the usual one of the error code, with the name of the code."""
    error = ErrorCode(result.error_code)
    message: str | None = getattr(result, "error_message", None)
    return f"{message or error.message} ({error.name})"


def raise_on_error(result: RequestResult, what: str) -> None:
    """ClickException that begins with `what`, if the result is an error."""
    if result.error_code:
        raise click.ClickException(f"{what}: {error_text(result)}")


def raise_refusals(refusals: Mapping[str, str]) -> None:
    """ClickException if something was refused, after what succeeded has been printed."""
    if refusals:
        raise click.ClickException("; ".join(f"{name}: {why}" for name, why in refusals.items()))


class ClusterClient:
    """Connections to the brokers of one cluster, made when they are needed."""

    def __init__(self, connection: ClusterConnection) -> None:
        self.connection = connection
        self._bootstrap = connection.addresses
        self._addresses: dict[int, Address] = {}
        self._clients: dict[Address, BlockingClient] = {}
        self._failures: dict[int, Exception] = {}
        """The last one of each broker."""
        self._answered_last = self._bootstrap[0]
        self._deadline: float | None = time.monotonic() + connection.timeout_s

    @property
    def timeout_s(self) -> float:
        """The longest wait for an answer: what is left of the command's time, or all of it each
        time for a command that runs until it is done."""
        if self._deadline is None:
            return self.connection.timeout_s
        return max(TIMEOUT_MIN_S, self._deadline - time.monotonic())

    def time_each_answer(self) -> None:
        """From now on the timeout is that of each answer, not that of the whole command."""
        self._deadline = None

    def confirm(self, question: str) -> None:
        """Ask the user, which takes none of the command's time; Abort if the answer is no."""
        began = time.monotonic()
        click.confirm(question, abort=True, err=True)
        if self._deadline is not None:
            self._deadline += time.monotonic() - began

    def connect(self) -> None:
        """Connect to a broker if there is no connection; ClickException if none answers."""
        if not self._clients:
            try:
                self._connect_first()
            except NoBrokerAnswersError as error:
                raise unreachable(error) from error

    @property
    def broker_ids(self) -> list[int]:
        """The brokers whose addresses are known."""
        return sorted(self._addresses)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the next request opens new ones. Needed after an interruption: an
        answer to the interrupted request may still arrive on an open one."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def learn(self, addresses: Mapping[int, Address]) -> None:
        """Remember the addresses of brokers."""
        self._addresses.update(addresses)

    def ask(self, request: Request[R], *, again: Callable[[R], bool] = lambda _: False) -> R:
        """The answer of any broker. The request is repeated until the connection's timeout while no
        broker answers, and while `again` says so of the answer.

        Raises ClickException if no broker answers or supports it, or if it cannot be encoded.
        """
        deadline = time.monotonic() + self.timeout_s
        while True:
            failures: dict[Address, Exception] = {}
            for address in self._answering_addresses(failures):
                try:
                    answer = self._client(address).ask(request)
                except UnencodableRequestError as error:
                    raise click.ClickException(str(error)) from error
                except _FAILURES as error:
                    self._drop(address)
                    failures[address] = error
                    continue
                self._answered_last = address
                if not again(answer) or time.monotonic() > deadline:
                    return answer
                break
            is_supported = any(not isinstance(e, UnsupportedApiError) for e in failures.values())
            if failures and (not is_supported or time.monotonic() > deadline):
                raise click.ClickException(f"no broker answers ({failure_text(failures)})")
            time.sleep(PAUSE_S)

    def ask_node(self, node_id: int, request: Request[R]) -> R | None:
        """The answer of one broker; None if it does not answer, does not support the request, or
        has no known address. Raises ClickException if the request cannot be encoded."""
        address = self._addresses.get(node_id)
        if address is None:
            return None
        # The broker may have closed a connection that was idle.
        for _ in range(2):
            was_open = address in self._clients
            try:
                return self._client(address).ask(request)
            except UnencodableRequestError as error:
                raise click.ClickException(str(error)) from error
            except _FAILURES as error:
                self._failures[node_id] = error
                self._drop(address)
                if not was_open:
                    break
        return None

    def silence(self, node_id: int) -> str:
        """Why `ask_node` has had no answer of a broker, as the end of a sentence."""
        failure = self._failures.get(node_id)
        if isinstance(failure, UnsupportedApiError):
            return f"broker {node_id}: {failure}"
        return f"broker {node_id} does not answer"

    def ask_broker(self, node_id: int, request: Request[R]) -> R:
        """As `ask_node`; ClickException if the broker does not answer."""
        answer = self.ask_node(node_id, request)
        if answer is None:
            raise click.ClickException(self.silence(node_id))
        return answer

    def serves(self, key: ApiKey) -> bool:
        """Whether the broker that answered last supports an API of Kafka's."""
        try:
            return self._client(self._answered_last).serves(key)
        except _FAILURES:
            self._drop(self._answered_last)
            return False

    def metadata(self, topics: Iterable[str] | None = ()) -> MetadataResponse:
        """The brokers, whose addresses are remembered, and these topics, or all for None."""
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        answer = self.ask(request)
        self.learn({broker.node_id: (broker.host, broker.port) for broker in answer.brokers})
        return answer

    def coordinators(self, keys: Iterable[str], key_type: int = GROUP) -> dict[str, int]:
        """The coordinator of each group or transactional id, without those that have none now.
        ClickException if one may not be asked for."""
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
        found: dict[str, int] = {}
        for each in self.ask(request).coordinators:
            if not each.error_code:
                self.learn({each.node_id: (each.host, each.port)})
                found[each.key] = each.node_id
            elif each.error_code not in COORDINATOR_ERRORS:
                raise_on_error(each, each.key)
        return found

    def ask_coordinator(
        self,
        key: str,
        request: Request[R],
        result_of: Callable[[R], RequestResult],
        *,
        key_type: int = GROUP,
        retried: frozenset[ErrorCode] = COORDINATOR_ERRORS,
    ) -> R:
        """The answer of the coordinator of a group or transactional id. The request is repeated
        until the timeout while its result is an error that is `retried`. ClickException if no
        coordinator answers."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            node_id = self.coordinators([key], key_type).get(key)
            answer = None if node_id is None else self.ask_node(node_id, request)
            is_late = time.monotonic() > deadline
            if answer is not None and (is_late or result_of(answer).error_code not in retried):
                return answer
            if is_late:
                raise click.ClickException(
                    f"the coordinator of {key} does not answer or does not support the request"
                )
            time.sleep(PAUSE_S)

    def _known_addresses(self) -> list[Address]:
        known = [self._answered_last, *self._bootstrap, *self._addresses.values()]
        return list(dict.fromkeys(known))

    def _answering_addresses(self, failures: dict[Address, Exception]) -> list[Address]:
        """The addresses to ask, in this order. None if no broker answers: then `failures` has the
        reasons. ClickException if none has ever answered."""
        if not self._clients:
            try:
                self._connect_first()
            except NoBrokerAnswersError as error:
                if self.connection.answered is None and not self._addresses:
                    raise unreachable(error) from error
                failures.update(error.failures)
                return []
        return self._known_addresses()

    def _connect_first(self) -> None:
        """Connect to the known address that answers first."""
        self.connection.prepare()
        address, client = first_to_answer(
            self.connection.connect, self._known_addresses(), self.timeout_s
        )
        self._clients[address] = client
        self._answered_last = self.connection.answered = address

    def _client(self, address: Address) -> BlockingClient:
        client = self._clients.get(address)
        if client is None:
            timeout_s = min(self.timeout_s, CONNECT_TIMEOUT_S)
            client = connected(self.connection.connect, address, timeout_s)
            self._clients[address] = client
        client.wait(self.timeout_s)
        return client

    def _drop(self, address: Address) -> None:
        client = self._clients.pop(address, None)
        if client is not None:
            client.close()


def with_client(command: Callable[P, R]) -> Callable[..., R]:
    """Give a click command the options for the connection and the output, and pass it a `client`
    and an `output`."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        connection = kwargs.pop("connection")
        assert isinstance(connection, ClusterConnection)
        with ClusterClient(connection) as client:
            kwargs["client"] = client
            return command(*args, **kwargs)

    return with_connection(with_output(wrapper))
