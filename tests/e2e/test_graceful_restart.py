"""A node that is stopped (SIGTERM) and started again is not felt by clients.

What waits on the node is answered with the error that sends the client elsewhere, and the node goes
on answering while clients turn to others.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
from odradek.protocol.messages.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)
from odradek.protocol.messages.partitions import PartitionOffset, TopicOffsets
from odradek.protocol.messages.produce import ProduceResponse
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.conformance.dialogue import METADATA, PRODUCE, append, batch_of, produce_request
from tests.conformance.members import RawMember, stabilise
from tests.e2e.cluster import Cluster, running_cluster
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

OFFSETS = "__consumer_offsets"
LONG_MS = 120_000


@contextmanager
def stopping(nodes: Cluster, node_id: int) -> Iterator[None]:
    """The node stops while the block runs."""
    thread = threading.Thread(target=nodes[node_id].stop)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def coordinator_of(wire: WireClient, group: str) -> int:
    """The group's coordinator, once this connection's node names one."""

    def found() -> list[int]:
        answer = wire.ask(FindCoordinatorRequest(key=group), 3, FindCoordinatorResponse)
        return [] if answer.error_code else [answer.node_id]

    return wait_until(found, what=f"{group} has a coordinator")[0]


def test_a_newcomer_that_waits_is_sent_to_the_next_coordinator_and_keeps_its_id(
    tmp_path: Path,
) -> None:
    """Its group has a stored generation."""
    with running_cluster(tmp_path) as nodes, ExitStack() as stack:

        def connect(node_id: int) -> WireClient:
            return stack.enter_context(WireClient(nodes[node_id].bootstrap_servers))

        old = coordinator_of(connect(0), "g")
        nodes.wait_until_whole(OFFSETS)
        stable, newcomer = RawMember(connect(old), "g"), RawMember(connect(old), "g")
        stabilise(stable)
        newcomer.get_id()
        newcomer.post_join()
        wait_until(lambda: stable.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
        given = newcomer.id
        with stopping(nodes, old):
            joined = newcomer.joined()
            assert (joined.error_code, joined.member_id) == (ErrorCode.NOT_COORDINATOR, given)
            assert stable.heartbeat() == ErrorCode.NOT_COORDINATOR
            # The stopping node still answers, over old connections and new ones.
            new = coordinator_of(newcomer.wire, "g")
            assert new != old
            with WireClient(nodes[old].bootstrap_servers) as late:
                late.ask(MetadataRequest(topics=[]), METADATA, MetadataResponse)
        newcomer.wire, stable.wire = connect(new), connect(new)
        newcomer.post_join()
        wait_until(lambda: stable.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
        stable.post_join()
        for member, member_id in ((newcomer, given), (stable, stable.id)):
            joined = member.joined()
            assert (joined.error_code, joined.member_id) == (ErrorCode.NONE, member_id)
            assert joined.generation_id == 2


def test_requests_that_wait_for_others_are_answered_when_nobody_can_take_over(
    tmp_path: Path,
) -> None:
    """The other nodes are gone: an append waits for its followers, a command for a quorum."""
    with running_cluster(tmp_path) as nodes, ExitStack() as stack:
        nodes.create_at("t", [[0, 1, 2]], {"min.insync.replicas": "1"})

        def connect() -> WireClient:
            return stack.enter_context(WireClient(nodes[0].bootstrap_servers))

        appending, deleting, creating = connect(), connect(), connect()
        append(appending, "t", b"first", b"second")
        for node_id in (1, 2):
            nodes[node_id].kill()
        request = produce_request("t", {0: batch_of(b"third")})
        request.timeout_ms = LONG_MS
        appending.post(request, PRODUCE)
        deletion = TopicOffsets(name="t", partitions=[PartitionOffset(partition_index=0, offset=1)])
        deleting.post(DeleteRecordsRequest(topics=[deletion], timeout_ms=LONG_MS), 2)
        topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
        creating.post(CreateTopicsRequest(topics=[topic], timeout_ms=LONG_MS), 5)
        assert creating.is_silent(0.5)
        assert appending.is_silent(0.05)
        assert deleting.is_silent(0.05)
        with stopping(nodes, 0):
            ((appended,),) = (
                each.partition_responses for each in appending.receive(ProduceResponse).responses
            )
            assert appended.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            ((deleted,),) = (
                each.partitions for each in deleting.receive(DeleteRecordsResponse).topics
            )
            assert deleted.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            (created,) = creating.receive(CreateTopicsResponse).topics
            assert created.error_code == ErrorCode.REQUEST_TIMED_OUT
            for wire in (appending, deleting, creating):
                wire.wait_until_closed()
        assert "did not finish in time" not in nodes[0].log()
