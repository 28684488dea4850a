"""Requests to a cluster whose brokers stop and return."""

from collections.abc import Iterator

import click
import pytest

from odradek.node.cli.cluster_client import ClusterClient, error_text, raise_on_error
from odradek.node.cli.connection import ClusterConnection, make_connection
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from odradek.protocol.messages.diagnostics import ExplainTopicRequest
from odradek.protocol.messages.metadata import (
    DescribeClusterRequest,
    MetadataRequest,
    MetadataResponse,
)
from odradek.protocol.messages.transactions import ListTransactionsRequest
from tests.support.ports import free_port
from tests.support.stand_in_cluster import StandInCluster, stand_in_cluster


@pytest.fixture
def three() -> Iterator[StandInCluster]:
    with stand_in_cluster(3) as cluster:
        yield cluster


def connection_to(cluster: StandInCluster, timeout_s: float = 10.0) -> ClusterConnection:
    return make_connection(cluster.bootstrap, timeout_s, None, ())


def asked(cluster: StandInCluster) -> list[int]:
    """Which broker was asked for metadata each time."""
    return [node for node, request in cluster.requests if isinstance(request, MetadataRequest)]


def test_the_broker_that_answered_last_is_asked_first(three: StandInCluster) -> None:
    with ClusterClient(connection_to(three)) as client:
        for _ in range(3):
            client.ask(MetadataRequest(topics=[]))
    assert asked(three) == [0, 0, 0]


def test_an_unsupported_api_is_an_error_at_once(three: StandInCluster) -> None:
    with (
        ClusterClient(connection_to(three)) as client,
        pytest.raises(click.ClickException, match="does not support ListTransactions"),
    ):
        client.ask(ListTransactionsRequest())


def test_another_broker_is_asked_when_one_does_not_answer(three: StandInCluster) -> None:
    with ClusterClient(connection_to(three)) as client:
        client.ask(MetadataRequest(topics=[]))
        three.stop(0)
        client.ask(MetadataRequest(topics=[]))
        client.ask(MetadataRequest(topics=[]))
    assert asked(three) == [0, 1, 1]


def test_brokers_of_the_metadata_are_asked_too(three: StandInCluster) -> None:
    first, second, _ = three.bootstrap.split(",")
    host, port = second.split(":")
    with ClusterClient(make_connection(first, 10.0, None, ())) as client:
        client.learn({1: (host, int(port))})
        three.stop(0)
        client.ask(MetadataRequest(topics=[]))
    assert asked(three) == [1]


def test_a_closed_connection_is_opened_again(three: StandInCluster) -> None:
    host, port = three.bootstrap.split(",")[2].split(":")
    with ClusterClient(connection_to(three)) as client:
        client.learn({2: (host, int(port))})
        for _ in range(2):
            assert client.ask_node(2, MetadataRequest(topics=[]))
            three.hang_up(2)
    assert asked(three) == [2, 2]


def test_a_broker_that_has_stopped_does_not_answer(three: StandInCluster) -> None:
    with ClusterClient(connection_to(three)) as client:
        client.learn({7: ("127.0.0.1", free_port())})
        assert client.ask_node(7, MetadataRequest(topics=[])) is None
        assert client.ask_node(8, MetadataRequest(topics=[])) is None
        assert client.silence(7) == "broker 7 does not answer"


def test_a_broker_that_is_not_odradeks_is_not_called_silent(three: StandInCluster) -> None:
    host, port = three.bootstrap.split(",")[2].split(":")
    with ClusterClient(connection_to(three)) as client:
        client.learn({2: (host, int(port))})
        assert client.ask_node(2, ExplainTopicRequest(topics=[])) is None
        assert "only Odradek's brokers do" in client.silence(2)


def test_a_request_is_repeated_while_again_says_so(three: StandInCluster) -> None:
    with ClusterClient(connection_to(three)) as client:
        count = 0

        def is_third(_answer: MetadataResponse) -> bool:
            nonlocal count
            count += 1
            return count < 3

        client.ask(MetadataRequest(topics=[]), again=is_third)
    assert len(asked(three)) == 3


def test_the_last_answer_is_returned_after_the_timeout(three: StandInCluster) -> None:
    with ClusterClient(connection_to(three, timeout_s=0.3)) as client:
        answer = client.ask(DescribeClusterRequest(), again=lambda _: True)
    assert answer.cluster_id == "cluster"


def test_the_error_names_the_failures_of_all_brokers(three: StandInCluster) -> None:
    with ClusterClient(connection_to(three, timeout_s=0.3)) as client:
        client.metadata()
        for node in range(3):
            three.stop(node)
        with pytest.raises(click.ClickException) as caught:
            client.ask(ListPartitionReassignmentsRequest(topics=None))
    assert caught.value.message.startswith("no broker answers")
    assert caught.value.message.count("127.0.0.1") == 3


def test_requests_after_close_open_new_connections(three: StandInCluster) -> None:
    with ClusterClient(connection_to(three)) as client:
        client.ask(MetadataRequest(topics=[]))
        client.close()
        client.ask(MetadataRequest(topics=[]))
    assert asked(three) == [0, 0]


def test_a_request_that_cannot_be_encoded_is_an_error_at_once(three: StandInCluster) -> None:
    request = ListPartitionReassignmentsRequest(timeout_ms=2**40)
    with ClusterClient(connection_to(three)) as client:
        host, port = three.bootstrap.split(",")[0].split(":")
        client.learn({0: (host, int(port))})
        with pytest.raises(click.ClickException, match="cannot carry"):
            client.ask(request)
        with pytest.raises(click.ClickException, match="cannot carry"):
            client.ask_node(0, request)


def test_an_error_has_the_brokers_message_and_the_name_of_its_code() -> None:
    raise_on_error(ListPartitionReassignmentsResponse(), "nothing")
    late = ListPartitionReassignmentsResponse(
        error_code=ErrorCode.REQUEST_TIMED_OUT, error_message="it is late"
    )
    with pytest.raises(click.ClickException, match=r"no vote: it is late \(REQUEST_TIMED_OUT\)"):
        raise_on_error(late, "no vote")
    late.error_message = None
    assert error_text(late) == f"{ErrorCode.REQUEST_TIMED_OUT.message} (REQUEST_TIMED_OUT)"
