"""Findings about replicas: fenced brokers, and in-sync replica sets (ISRs) that have shrunk.

Pure: computed from metadata. Partitions with the same cause make one finding, because a broker that
fails affects hundreds. Called by topic_explain.py, group_explain.py and cluster.py.
"""

from collections.abc import Collection, Iterable

from odradek.node.cli.findings import Finding, PartitionView
from odradek.node.cli.output import first_names


def replica_findings(views: Iterable[PartitionView], fenced: Collection[int] = ()) -> list[Finding]:
    """A finding for each broker that should have replicas in sync and has not, and for each of
    `fenced`, with replicas here or not."""
    views = sorted(views, key=lambda view: view.partition_id)
    away = {*fenced, *(replica for view in views for replica in view.fenced)}
    missing: dict[int, list[PartitionView]] = {broker: [] for broker in away}
    offline: dict[int, list[PartitionView]] = {}
    for view in views:
        for replica in view.offline:
            offline.setdefault(replica, []).append(view)
        for replica in view.out_of_sync:
            if replica not in view.offline:
                missing.setdefault(replica, []).append(view)
    return [_offline(broker, lost) for broker, lost in sorted(offline.items())] + [
        _fenced(broker, behind, views) if broker in away else _out_of_sync(broker, behind, views)
        for broker, behind in sorted(missing.items())
    ]


def _fenced(broker: int, behind: list[PartitionView], views: list[PartitionView]) -> Finding:
    leaderless = [
        view for view in views if view.leader < 0 and broker in (view.in_sync or view.eligible)
    ]
    lost = f" Without a leader until it is back: {_names(leaderless)}." if leaderless else ""
    lost += f" Its replicas are not in sync in {_names(behind)}." if behind else ""
    return Finding(
        about=f"broker {broker}",
        what=(
            f"Broker {broker} is fenced: it is down, hangs, or does not reach the active"
            f" controller. It leads no partition.{lost}"
        ),
        advice=(
            f"Start broker {broker}, or see in its log why it sends no heartbeats. Its replicas"
            " catch up by themselves."
        ),
    )


def _offline(broker: int, lost: list[PartitionView]) -> Finding:
    leaderless = [view for view in lost if view.leader < 0]
    without = f" Without a leader until it is back: {_names(leaderless)}." if leaderless else ""
    return Finding(
        about=f"broker {broker}",
        what=(
            f"Broker {broker} serves, but these replicas are in a log directory that is offline:"
            f" {_names(lost)}.{without}"
        ),
        advice="`odradek logdir list` names it, and the broker's log says why.",
    )


def _out_of_sync(broker: int, behind: list[PartitionView], views: list[PartitionView]) -> Finding:
    hosted = sum(broker in view.replicas for view in views)
    leaders = sorted({view.leader for view in behind if view.leader >= 0})
    where = f" from broker {', '.join(map(str, leaders))}" if leaders else ""
    return Finding(
        about=f"broker {broker}",
        what=(
            f"Broker {broker} serves, but {len(behind)} of its {hosted} replicas here are not in"
            f" sync: {_names(behind)}."
        ),
        advice=(
            f"It catches up or cannot fetch{where}: `odradek cluster status` shows how many bytes"
            " it is behind. If they do not shrink, see its log, and check its disk and the network."
        ),
    )


def below_minimum_findings(views: Iterable[PartitionView]) -> list[Finding]:
    """A finding about all partitions with fewer replicas in sync than they need."""
    below = [view for view in views if view.is_below_minimum]
    if not below:
        return []
    count = "1 partition has" if len(below) == 1 else f"{len(below)} partitions have"
    what = (
        f"{count} fewer replicas in sync than min.insync.replicas asks for: writes with acks=all"
        f" are refused in {_names(below)}."
    )
    return [Finding(about="partitions", what=what)]


def _names(views: list[PartitionView]) -> str:
    return first_names((view.name for view in views), 10)
