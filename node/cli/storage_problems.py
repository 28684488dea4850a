"""Brokers that cannot write their log directories. Works with any Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.findings import Finding, PartitionView
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import DescribeLogDirsRequest
from odradek.protocol.messages.diagnostics import ExplainTopicRequest

DISK_FULL: Final = "the disk is full"
"""How a broker reports a full disk."""
_OFFLINE_ADVICE: Final = (
    "Repair its disk, or mount it, and start the broker again: the directory stays offline until"
    " then. What others have replicas of is led by them."
)
"""What to do about a log directory that is offline, while the broker serves."""
_OFFLINE: Final = " is offline"
"""How a broker reports a log directory that has failed, beside its data folder."""


def storage_problems(client: ClusterClient, brokers: Iterable[int]) -> dict[int, str]:
    """The problems of those of these brokers that report some, in a few words."""
    problems: dict[int, str] = {}
    for broker in brokers:
        answer = client.ask_node(broker, DescribeLogDirsRequest(topics=[]))
        offline = [
            result.log_dir
            for result in (answer.results if answer is not None else ())
            if result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        ]
        if offline:
            # Only Odradek's brokers tell the reason.
            reason = client.ask_node(broker, ExplainTopicRequest(topics=[]))
            told = reason.storage_problem if reason is not None else None
            problems[broker] = told or f"{', '.join(offline)} is offline"
    return problems


def storage_findings(problems: Mapping[int, str]) -> list[Finding]:
    """Findings about brokers that cannot write, by their problems."""
    return [_finding(broker, problem) for broker, problem in sorted(problems.items())]


def _finding(broker: int, problem: str) -> Finding:
    about = f"broker {broker}"
    if _OFFLINE in problem:
        what = f"Broker {broker} has lost a part of its replicas: {problem}."
        return Finding(about=about, what=what, advice=_OFFLINE_ADVICE)
    what = (
        f"Broker {broker} cannot write its data: {problem}. Writes to the partitions that it leads"
        " are refused (KAFKA_STORAGE_ERROR)."
    )
    return Finding(about=about, what=what, advice=_advice(problem))


def storage_findings_of(views: Iterable[PartitionView]) -> list[Finding]:
    """Findings about the brokers of these partitions that cannot write."""
    return storage_findings({b: problem for v in views for b, problem in v.storage_problems})


def _advice(problem: str) -> str:
    if problem == DISK_FULL:
        return (
            "Free space on its disk: delete topics or records, or shorten their retention. Records"
            " can still be read."
        )
    return "Repair its disk; the broker's log names the file. Records can still be read."
