"""A node alone that stops answers what waits; several nodes: tests/e2e/test_graceful_restart.py."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchResponse
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from tests.conformance.dialogue import FETCH, fetch_request, partitions_of
from tests.conformance.members import RawMember, form, stabilise
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = pytest.mark.e2e


@contextmanager
def stopping(broker: EmbeddedBroker) -> Iterator[None]:
    """The node stops while the block runs."""
    thread = threading.Thread(target=broker.stop)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with EmbeddedBroker(tmp_path, settings=settings) as broker:
        broker.create_topic("t")
        with WireClient(broker.bootstrap_servers) as wire:
            wait_until(
                lambda: (
                    not wire.ask(
                        FindCoordinatorRequest(key="g"), 3, FindCoordinatorResponse
                    ).error_code
                ),
                what="groups have a coordinator",
            )
        yield broker


def test_requests_that_wait_are_answered_before_their_connections_close(
    broker: EmbeddedBroker,
) -> None:
    with ExitStack() as stack:

        def connect() -> WireClient:
            return stack.enter_context(WireClient(broker.bootstrap_servers))

        stable, newcomer = RawMember(connect(), "joining"), RawMember(connect(), "joining")
        stabilise(stable)
        newcomer.get_id()
        newcomer.post_join()
        wait_until(lambda: stable.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
        members = [RawMember(connect(), "syncing") for _ in range(2)]
        leader = form(*members)[0].leader
        leading, follower = sorted(members, key=lambda member: member.id != leader)
        follower.post_sync()
        poll = connect()
        poll.post(fetch_request("t", {0: 0}, max_wait_ms=60_000), FETCH)
        # The SyncGroup and the Fetch have arrived before the second heartbeat.
        assert [leading.heartbeat() for _ in range(2)] == [ErrorCode.NONE] * 2
        given = newcomer.id
        with stopping(broker):
            joined = newcomer.joined()
            assert (joined.error_code, joined.member_id) == (ErrorCode.NOT_COORDINATOR, given)
            assert follower.synced().error_code == ErrorCode.NOT_COORDINATOR
            data = partitions_of(poll.receive(FetchResponse))[0]
            assert data.error_code == ErrorCode.NONE
            for wire in (newcomer.wire, follower.wire, poll, stable.wire):
                wire.wait_until_closed()
        assert "did not finish in time" not in broker.log()
