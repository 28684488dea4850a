"""Topics that a copy writes to: made like the source's, or checked before anything is written.

A copy keeps partitions and timestamps, so a target needs as many partitions as the source and the
timestamps of producers (CreateTime). Called by replay.py and mirror.py.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionName
from odradek.pipeline.librdkafka import ClientErrors, open_client, reason_of
from odradek.pipeline.wire.cluster import KafkaCluster

_TIMESTAMP_TYPE: Final = "message.timestamp.type"
BROKER_DEFAULT: Final = -1

_NONE: Final[Mapping[str, str]] = {}

R = TypeVar("R")


class TopicAdmin:
    """Creates and describes topics of one cluster."""

    def __init__(self, properties: Mapping[str, str], *, timeout_s: float) -> None:
        self._address = properties["bootstrap.servers"]
        self._timeout_s = timeout_s
        self._errors = ClientErrors()
        self._admin: AdminClient = open_client(
            AdminClient, {**properties, "error_cb": self._errors}
        )

    def ensure(
        self,
        topic: str,
        partitions: int,
        existing: int | None,
        *,
        configs: Mapping[str, str] = _NONE,
        replication_factor: int = BROKER_DEFAULT,
        grow: bool = False,
    ) -> None:
        """Create the topic if it is not there (`existing` is None), or check the one that is.

        PipelineError if it has fewer partitions and may not `grow`, or does not keep timestamps.
        """
        if existing is None:
            self._create(topic, partitions, replication_factor, configs)
            return
        found = self.configs([topic])[topic].get(_TIMESTAMP_TYPE)
        if found not in (None, "CreateTime"):
            raise PipelineError(
                f"topic {topic} at {self._address} has {_TIMESTAMP_TYPE}={found} and would replace"
                f" the timestamps of the copy: set it to CreateTime, or choose another topic"
            )
        if existing >= partitions:
            return
        if not grow:
            raise PipelineError(
                f"topic {topic} at {self._address} has {existing} partitions and the source"
                f" {partitions}: add partitions, or choose another topic"
            )
        request = NewPartitions(topic, partitions)
        answers = self._admin.create_partitions([request], request_timeout=self._timeout_s)
        self._result(answers[topic], f"cannot add partitions to topic {topic}")

    def configs(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        """The configuration of topics, with the cluster's defaults."""
        wanted = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        answers = self._admin.describe_configs(wanted, request_timeout=self._timeout_s)
        return {
            resource.name: {
                name: entry.value
                for name, entry in self._result(
                    answer, f"cannot describe topic {resource.name}"
                ).items()
                if entry.value is not None
            }
            for resource, answer in answers.items()
        }

    def retention_ms(self, topic: str) -> int | None:
        """How old records of the topic may become by their own time; None without a limit."""
        found = self.configs([topic])[topic]
        limit = int(found.get("retention.ms", "-1"))
        return limit if limit >= 0 and "delete" in found.get("cleanup.policy", "delete") else None

    def cluster_id(self) -> str:
        """What tells clusters apart, however they are reached."""
        try:
            found = self._admin.list_topics(timeout=self._timeout_s).cluster_id
        except KafkaException as error:
            raise self._explain("cannot ask for the cluster's id", error) from error
        return found or ""

    def groups(self) -> list[str]:
        """All groups of the cluster, in the order of their names."""
        answer = self._admin.list_consumer_groups(request_timeout=self._timeout_s)
        found = self._result(answer, "cannot list groups")
        # Brokers that do not answer are no failure to librdkafka.
        for error in found.errors or ():
            raise self._explain("cannot list groups", KafkaException(error))
        return sorted(each.group_id for each in found.valid or ())

    def _create(
        self, topic: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        request = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=replication_factor,
            config={**configs, _TIMESTAMP_TYPE: "CreateTime"},
        )
        answers = self._admin.create_topics([request], request_timeout=self._timeout_s)
        try:
            self._result(answers[topic], f"cannot create topic {topic}")
        except PipelineError as error:
            cause = error.__cause__
            code = cause.args[0].code() if isinstance(cause, KafkaException) else None
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _result(self, answer: "Future[R]", what: str) -> R:
        try:
            return answer.result()
        except KafkaException as error:
            raise self._explain(what, error) from error

    def _explain(self, what: str, error: KafkaException) -> PipelineError:
        self._admin.poll(0)  # Only here it calls error_cb.
        return PipelineError(
            f"{what} at {self._address}: {reason_of(error)}{self._errors.explain()}"
        )


def partition_ends(
    cluster: KafkaCluster, partitions: Collection[PartitionName]
) -> dict[PartitionName, int]:
    """The log end of each partition, above all that was ever written to it."""
    found = cluster.list_offsets(dict.fromkeys(partitions, LATEST), read_committed=False)
    return {name: each.offset for name, each in found.items()}


def wait_until_stable(cluster: KafkaCluster, name: PartitionName) -> None:
    """Until no transaction is open in the partition: a commit is acknowledged before its markers
    are in all partitions (KIP-98). PipelineError after the cluster's timeout."""
    backoff = cluster.backoff()
    while True:
        end = partition_ends(cluster, [name])[name]
        stable = cluster.list_offsets({name: LATEST}, read_committed=True)[name].offset
        if stable >= end:
            return
        backoff.pause(f"{name} at {cluster.bootstrap_servers} has an open transaction at {stable}")


def check_empty(cluster: KafkaCluster, partitions: Collection[PartitionName]) -> None:
    """PipelineError if a partition holds something: a copy into it would mix two logs."""
    starts = cluster.list_offsets(dict.fromkeys(partitions, EARLIEST), read_committed=False)
    for name, end in sorted(partition_ends(cluster, partitions).items()):
        if end > starts[name].offset:
            raise PipelineError(
                f"topic {name.topic} at {cluster.bootstrap_servers} is not empty:"
                f" {name} has offsets {starts[name].offset} to {end - 1};"
                " choose an empty topic, or say --append"
            )
