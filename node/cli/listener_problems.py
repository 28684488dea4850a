"""What keeps clients from listeners of brokers, or soon will, as the brokers say it themselves.

Certificates that expire, stores that are refused, keys of access tokens that cannot be fetched. Of
Odradek's brokers; Kafka's do not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.findings import Finding
from odradek.protocol.messages.configs import DescribeConfigSourcesRequest

LISTENER_ADVICE: Final = (
    "Renew the certificate, correct the files that ssl.keystore.location and"
    " ssl.truststore.location name, or what sasl.oauthbearer.jwks.endpoint.url gives. The node"
    " notices by itself (docs/security.md)."
)


def listener_problems(client: ClusterClient, brokers: Iterable[int]) -> dict[int, Sequence[str]]:
    """The problems of those of these brokers that report some."""
    problems: dict[int, Sequence[str]] = {}
    for broker in brokers:
        answer = client.ask_node(broker, DescribeConfigSourcesRequest(keys=[]))
        if answer is not None and answer.listener_problems:
            problems[broker] = answer.listener_problems
    return problems


def listener_findings(problems: Mapping[int, Sequence[str]]) -> list[Finding]:
    """A finding for each problem."""
    return [
        Finding(about=f"broker {broker}", what=f"Broker {broker}: {text}.", advice=LISTENER_ADVICE)
        for broker, texts in sorted(problems.items())
        for text in texts
    ]
