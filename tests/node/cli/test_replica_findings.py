"""Findings about fenced brokers and shrunk ISRs."""

from odradek.node.cli.findings import PartitionView
from odradek.node.cli.replica_findings import below_minimum_findings, replica_findings


def view(index: int, *in_sync: int, leader: int = 0, **given: object) -> PartitionView:
    return PartitionView(
        partition_id=("t", index),
        leader=leader,
        replicas=(0, 1, 2),
        in_sync=in_sync,
        **given,  # type: ignore[arg-type]  # fields of the view
    )


def test_replicas_that_are_all_in_sync_give_no_finding() -> None:
    assert replica_findings([view(0, 0, 1, 2)]) == []
    assert below_minimum_findings([view(0, 0, 1, 2, min_in_sync=2)]) == []


def test_a_fenced_broker_is_one_finding_for_all_its_partitions() -> None:
    [finding] = replica_findings([view(index, 0, 1, fenced=(2,)) for index in range(12)])
    assert finding.about == "broker 2"
    assert finding.what == (
        "Broker 2 is fenced: it is down, hangs, or does not reach the active controller. It leads"
        " no partition. Its replicas are not in sync in t-0, t-1, t-2, t-3, t-4, t-5, t-6, t-7,"
        " t-8, t-9 and 2 more."
    )
    assert finding.advice.startswith("Start broker 2, or see in its log")


def test_a_fenced_broker_that_was_last_in_sync_names_the_partitions_without_a_leader() -> None:
    [finding] = replica_findings([view(3, 2, leader=-1, fenced=(2,))][:1])[-1:]
    assert "Without a leader until it is back: t-3." in finding.what


def test_a_fenced_broker_without_replicas_here_is_a_finding_where_it_is_asked_for() -> None:
    assert replica_findings([view(0, 0, 1, 2)], fenced=[7])[0].about == "broker 7"


def test_a_broker_that_serves_and_is_behind_names_the_leader_that_it_fetches_from() -> None:
    [finding] = replica_findings([view(0, 0, 1), view(1, 0, 1, 2)])
    assert finding.what == ("Broker 2 serves, but 1 of its 2 replicas here are not in sync: t-0.")
    assert finding.advice.startswith("It catches up or cannot fetch from broker 0:")


def test_replicas_in_an_offline_log_directory_are_not_said_to_catch_up() -> None:
    views = [view(0, 0, 1, offline=(2,)), view(1, 2, leader=-1, offline=(2,)), view(2, 0, 1, 2)]
    [finding, *others] = replica_findings(views)
    assert finding.what == (
        "Broker 2 serves, but these replicas are in a log directory that is offline: t-0, t-1."
        " Without a leader until it is back: t-1."
    )
    assert not any("Broker 2" in other.what for other in others)


def test_partitions_below_their_minimum_are_one_finding() -> None:
    [finding] = below_minimum_findings([view(n, 0, min_in_sync=2) for n in range(2)])
    assert finding.what == (
        "2 partitions have fewer replicas in sync than min.insync.replicas asks for: writes with"
        " acks=all are refused in t-0, t-1."
    )
    assert below_minimum_findings([view(0, 1, leader=-1, min_in_sync=2)]) == []
