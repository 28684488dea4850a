"""Findings about brokers that cannot write."""

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.findings import PartitionView
from odradek.node.cli.storage_problems import (
    DISK_FULL,
    storage_findings,
    storage_findings_of,
    storage_problems,
)
from odradek.storage import reserve
from tests.support.stand_in_cluster import stand_in_cluster


def test_a_full_disk_is_a_finding_that_says_how_to_free_space() -> None:
    [finding] = storage_findings({2: DISK_FULL})
    assert finding.about == "broker 2"
    assert finding.what == (
        "Broker 2 cannot write its data: the disk is full. Writes to the partitions that it leads"
        " are refused (KAFKA_STORAGE_ERROR)."
    )
    assert finding.advice.startswith("Free space on its disk: delete topics")


def test_another_problem_is_to_be_repaired() -> None:
    [finding] = storage_findings({0: "stores/0: Read-only file system"})
    assert finding.advice.startswith("Repair its disk")


def test_a_log_directory_that_is_offline_does_not_stop_the_broker() -> None:
    [finding] = storage_findings({1: "log directory /b is offline: Read-only file system"})
    assert finding.what == (
        "Broker 1 has lost a part of its replicas: log directory /b is offline: Read-only file"
        " system."
    )
    assert finding.advice.startswith("Repair its disk, or mount it, and start the broker again")


def test_the_command_line_knows_how_brokers_report_a_full_disk() -> None:
    assert DISK_FULL == reserve.DISK_FULL


def test_a_broker_of_several_partitions_is_one_finding() -> None:
    views = [
        PartitionView(partition_id=("t", n), leader=1, storage_problems=((1, DISK_FULL),))
        for n in range(3)
    ]
    assert len(storage_findings_of(views)) == 1


def test_brokers_that_can_write_or_do_not_answer_have_no_problem() -> None:
    with stand_in_cluster(1) as cluster:
        client = ClusterClient(make_connection(cluster.bootstrap, 1.0, None, ()))
        client.metadata()
        assert storage_problems(client, [0, 1, 7]) == {}
        client.close()
