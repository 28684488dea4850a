"""Throttles of moving replicas (KIP-73): set before, taken away after, found again after a crash.

Two rates hold for each broker, one as leader and one as follower, and each topic names the replicas
that they are for. They are configs of the cluster, so that they outlive whoever has set them: what
an earlier run has left is found and taken away as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from odradek.cluster.balance.model import PartitionMove
from odradek.node.cli.cluster_client import ClusterClient, error_text, raise_on_error
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)

TOPIC: Final = 2
BROKER: Final = 4
SET: Final = 0
DELETE: Final = 1
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS: Final = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
CORDON: Final = "cordoned.log.dirs"
_DYNAMIC_TOPIC: Final = 1
_DYNAMIC_BROKER: Final = 2


@dataclass(frozen=True, slots=True)
class ThrottledResources:
    """Topics and brokers that have throttles of their own."""

    topics: frozenset[str]
    brokers: frozenset[int]

    def __bool__(self) -> bool:
        return bool(self.topics or self.brokers)


def throttle(
    client: ClusterClient, moves: Sequence[PartitionMove], brokers: Iterable[int], bytes_per_s: int
) -> ThrottledResources:
    """Slow the copies that these moves need; what is throttled then."""
    leading: dict[str, list[str]] = {}
    following: dict[str, list[str]] = {}
    for move in moves:
        if move.adding:
            leading.setdefault(move.topic, []).extend(f"{move.number}:{n}" for n in move.before)
            following.setdefault(move.topic, []).extend(f"{move.number}:{n}" for n in move.adding)
    throttled = ThrottledResources(frozenset(leading), frozenset(brokers))
    rates = dict.fromkeys(RATES, str(bytes_per_s))
    for broker in sorted(throttled.brokers):
        _alter(client, [_resource(BROKER, str(broker), rates)], broker)
    _alter(
        client,
        [
            _resource(
                TOPIC,
                topic,
                {REPLICAS[0]: ",".join(leading[topic]), REPLICAS[1]: ",".join(following[topic])},
            )
            for topic in sorted(leading)
        ],
    )
    return throttled


def find_throttles(
    client: ClusterClient, topics: Iterable[str], brokers: Iterable[int]
) -> ThrottledResources:
    """Which of these have throttles of their own, whoever has set them."""
    asked = [
        DescribeConfigsResource(
            resource_type=TOPIC, resource_name=topic, configuration_keys=list(REPLICAS)
        )
        for topic in topics
    ]
    found_topics = set()
    if asked:
        answer = client.ask(DescribeConfigsRequest(resources=asked), DescribeConfigsResponse)
        for result in answer.results:
            if any(config.config_source == _DYNAMIC_TOPIC for config in result.configs or ()):
                found_topics.add(result.resource_name)
    found_brokers = set()
    for broker in brokers:
        # Only the broker itself knows its configuration.
        resource = DescribeConfigsResource(
            resource_type=BROKER, resource_name=str(broker), configuration_keys=list(RATES)
        )
        told = client.ask_node(
            broker, DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse
        )
        for result in told.results if told is not None else ():
            if any(config.config_source == _DYNAMIC_BROKER for config in result.configs or ()):
                found_brokers.add(broker)
    return ThrottledResources(frozenset(found_topics), frozenset(found_brokers))


def unthrottle(client: ClusterClient, throttled: ThrottledResources) -> None:
    """Take throttles away. Topics and brokers that are gone by now have none."""
    for broker in sorted(throttled.brokers):
        _alter(client, [_resource(BROKER, str(broker), dict.fromkeys(RATES))], broker)
    _alter(
        client,
        [_resource(TOPIC, topic, dict.fromkeys(REPLICAS)) for topic in sorted(throttled.topics)],
    )


def cordon(client: ClusterClient, node_id: int, *, is_cordoned: bool) -> str | None:
    """Have a node given no new replicas, or given them again (KIP-1066). What speaks against it,
    or None: an older Kafka knows no such thing."""
    value = "*" if is_cordoned else None
    (answer,) = _ask(client, [_resource(BROKER, str(node_id), {CORDON: value})], node_id)
    return error_text(answer.error_code, answer.error_message) if answer.error_code else None


def _resource(
    kind: int, name: str, configs: Mapping[str, str | None]
) -> IncrementalAlterConfigsResource:
    """Set keys, or delete those whose value is null."""
    return IncrementalAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterableConfig(
                name=key, config_operation=DELETE if value is None else SET, value=value
            )
            for key, value in configs.items()
        ],
    )


def _alter(
    client: ClusterClient,
    resources: Sequence[IncrementalAlterConfigsResource],
    broker: int | None = None,
) -> None:
    for answer in _ask(client, resources, broker):
        is_gone = answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not is_gone:
            what = "topic" if answer.resource_type == TOPIC else "broker"
            raise_on_error(
                answer.error_code,
                answer.error_message,
                f"the throttles of {what} {answer.resource_name}",
            )


def _ask(
    client: ClusterClient,
    resources: Sequence[IncrementalAlterConfigsResource],
    broker: int | None,
) -> Sequence[AlterConfigsResourceResponse]:
    """A broker's configs are changed by way of itself, which Kafka insists on; if it is away,
    by way of any."""
    if not resources:
        return ()
    request = IncrementalAlterConfigsRequest(resources=list(resources))
    told = None
    if broker is not None:
        told = client.ask_node(broker, request, IncrementalAlterConfigsResponse)
    if told is None or any(ErrorCode(r.error_code).is_retriable for r in told.responses):
        told = client.ask(
            request,
            IncrementalAlterConfigsResponse,
            again=lambda answer: any(_may_pass(r.error_code) for r in answer.responses),
        )
    return told.responses


def _may_pass(code: int) -> bool:
    """Whether asking again may help: a topic that is unknown stays so."""
    return ErrorCode(code).is_retriable and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
