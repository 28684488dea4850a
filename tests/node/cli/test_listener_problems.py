"""Findings about listeners that clients cannot use."""

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.listener_problems import listener_findings, listener_problems
from tests.support.stand_in_cluster import stand_in_cluster


def test_each_problem_is_a_finding() -> None:
    first, second = listener_findings({2: ["listener A: x"], 1: ["listener A: y"]})
    assert (first.about, first.what) == ("broker 1", "Broker 1: listener A: y.")
    assert (second.about, second.what) == ("broker 2", "Broker 2: listener A: x.")
    assert first.advice.startswith("Renew the certificate")


def test_brokers_that_report_nothing_or_do_not_answer_have_no_problem() -> None:
    with stand_in_cluster(1) as cluster:
        client = ClusterClient(make_connection(cluster.bootstrap, 1.0, None, ()))
        client.metadata()
        assert listener_problems(client, [0, 1, 7]) == {}
        client.close()
