"""What Apache Kafka answers to the requests of an operator: features, voters, reassignments,
producers and transactions, log directories, the removal of a broker.

`KAFKA_ANSWERS` was recorded from Apache Kafka 4.3.1, a fresh combined node 1 with two log
directories, with

    python -m tests.support.operations_dialogue HOST:PORT FIRST_DIRECTORY SECOND_DIRECTORY

which asks every question in order. What differs between two clusters is a name in the answers.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from odradek.node.cli.quorum import quorum_request
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeQuorumResponse,
    FeatureUpdateKey,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    RaftVoterEndpoint,
    ReassignablePartition,
    ReassignableTopic,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from odradek.protocol.types import uuid_to_text
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

KAFKA_ANSWERS: Final = Path(__file__).with_name("operations_kafka_4_3_1.json")
NODE: Final = 1
"""The id of the node."""
NOBODY: Final = 77
TOPIC, OPEN, EMPTY = "operations", "operations-open", "operations-empty"
"""A topic of two partitions; an open transaction, and one that has not begun."""
UP, SAFE_DOWN, UNSAFE_DOWN = 1, 2, 3
_BROKER: Final = 4
_LATEST: Final = {UpdateFeaturesRequest: 1}
Answer = tuple[str, object]


class OperationsDialogue:
    """Questions to one node; `answers` asks them."""

    def __init__(self, wire: WireClient, directories: Sequence[str]) -> None:
        self._wire = wire
        self._directories = directories
        self._names = {path: f"<{place}>" for place, path in enumerate(directories)}
        self._producer_names: dict[int, str] = {}

    def answers(self) -> Iterator[Answer]:
        """Each question's name and answer, in order."""
        self._create_topic()
        yield from self._features()
        yield from self._voters()
        yield from self._reassignments()
        yield from self._transactions()
        yield from self._producers()
        yield from self._log_directories()
        yield from self._brokers()

    def _create_topic(self) -> None:
        assignments = [
            CreatableReplicaAssignment(partition_index=n, broker_ids=[NODE]) for n in range(2)
        ]
        topic = CreatableTopic(
            name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=assignments
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        (created,) = self._wire.ask(request, 7, CreateTopicsResponse).topics
        assert created.error_code in (0, 36), created.error_message

    # -- UpdateFeatures ----------------------------------------------------------------------------

    def _features(self) -> Iterator[Answer]:
        cases: Mapping[str, list[tuple[str, int, int]]] = {
            "an unknown feature": [("no.such.version", 1, UP)],
            "an unknown feature off": [("no.such.version", 0, SAFE_DOWN)],
            "an upgrade type of 0": [("group.version", 1, 0)],
            "an upgrade type of 7": [("group.version", 1, 7)],
            "a negative level": [("group.version", -1, SAFE_DOWN)],
            "the same level": [("group.version", 1, UP)],
            "the same level as a downgrade": [("group.version", 1, SAFE_DOWN)],
            "a level that nobody supports": [("group.version", 50, UP)],
            "a higher level as a downgrade": [("group.version", 50, SAFE_DOWN)],
            "a downgrade as an upgrade": [("group.version", 0, UP)],
            "a safe downgrade": [("group.version", 0, SAFE_DOWN)],
            "an unsafe downgrade": [("group.version", 0, UNSAFE_DOWN)],
            "transaction.version, safe": [("transaction.version", 0, SAFE_DOWN)],
            "transaction.version, by one": [("transaction.version", 1, SAFE_DOWN)],
            "kraft.version off": [("kraft.version", 0, SAFE_DOWN)],
            "kraft.version off, unsafe": [("kraft.version", 0, UNSAFE_DOWN)],
            "kraft.version too high": [("kraft.version", 9, UP)],
            "metadata.version off": [("metadata.version", 0, UNSAFE_DOWN)],
            "metadata.version below all": [("metadata.version", 1, UNSAFE_DOWN)],
            "metadata.version too high": [("metadata.version", 900, UP)],
            "metadata.version, safe": [("metadata.version", 29, SAFE_DOWN)],
            "metadata.version, unsafe": [("metadata.version", 29, UNSAFE_DOWN)],
            "metadata.version, to the first, safe": [("metadata.version", 7, SAFE_DOWN)],
            "metadata.version, to the first, unsafe": [("metadata.version", 7, UNSAFE_DOWN)],
            "metadata.version, the same": [("metadata.version", 30, UP)],
            "one good, one bad": [("group.version", 0, SAFE_DOWN), ("no.such.version", 1, UP)],
            "nothing": [],
        }
        for name, updates in cases.items():
            for version in (1, 2):
                keys = [
                    FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind)
                    for feature, level, kind in updates
                ]
                request = UpdateFeaturesRequest(feature_updates=keys, validate_only=True)
                answer = self._wire.ask(request, version, UpdateFeaturesResponse)
                yield f"UpdateFeatures v{version}, {name}", self._plain(answer)
        for may_go_down in (False, True):
            key = FeatureUpdateKey(
                feature="group.version", max_version_level=1, allow_downgrade=may_go_down
            )
            answer = self._wire.ask(
                UpdateFeaturesRequest(feature_updates=[key]), 0, UpdateFeaturesResponse
            )
            yield f"UpdateFeatures v0, may go down: {may_go_down}", self._plain(answer)

    # -- AddRaftVoter, RemoveRaftVoter -------------------------------------------------------------

    def _voters(self) -> Iterator[Answer]:
        cluster_id = self._wire.ask(DescribeClusterRequest(), 1, DescribeClusterResponse).cluster_id
        (topic,) = self._wire.ask(quorum_request(), 2, DescribeQuorumResponse).topics
        (voter,) = topic.partitions[0].current_voters
        own, other = voter.replica_directory_id, bytes(range(16))
        controller = [RaftVoterEndpoint(name="CONTROLLER", host="127.0.0.1", port=1)]
        elsewhere = [RaftVoterEndpoint(name="ELSEWHERE", host="127.0.0.1", port=1)]
        self._names[cluster_id] = "<cluster>"
        self._names[uuid_to_text(own)] = "<directory>"
        added = {
            "another cluster": ("no-such-cluster", NOBODY, other, controller),
            "no cluster": (None, NOBODY, other, controller),
            "a node that nobody knows": (cluster_id, NOBODY, other, controller),
            "without listeners": (cluster_id, NOBODY, other, []),
            "another listener": (cluster_id, NOBODY, other, elsewhere),
            "a zero directory": (cluster_id, NOBODY, bytes(16), controller),
            "a negative node": (cluster_id, -1, other, controller),
            "the voter": (cluster_id, NODE, own, controller),
            "the voter, another directory": (cluster_id, NODE, other, controller),
        }
        for name, (cluster, node, directory, listeners) in added.items():
            for version in (0, 1):
                request = AddRaftVoterRequest(
                    cluster_id=cluster,
                    timeout_ms=30_000,
                    voter_id=node,
                    voter_directory_id=directory,
                    listeners=listeners,
                )
                begin = time.monotonic()
                answer = self._wire.ask(request, version, AddRaftVoterResponse)
                is_quick = time.monotonic() - begin < 10
                if answer.error_code == ErrorCode.REQUEST_TIMED_OUT:
                    answer.error_message = None  # it depends on the connection to nowhere
                plain = self._plain(answer, "at once" if is_quick else "late")
                yield f"AddRaftVoter v{version}, {name}", plain
        removed = {
            "another cluster": ("no-such-cluster", NOBODY, other),
            "no cluster": (None, NOBODY, other),
            "a node that is none": (cluster_id, NOBODY, other),
            "a negative node": (cluster_id, -1, other),
            "another directory": (cluster_id, NODE, other),
            "a zero directory": (cluster_id, NODE, bytes(16)),
            "the last voter": (cluster_id, NODE, own),
        }
        for name, (cluster, node, directory) in removed.items():
            gone = self._wire.ask(
                RemoveRaftVoterRequest(
                    cluster_id=cluster, voter_id=node, voter_directory_id=directory
                ),
                0,
                RemoveRaftVoterResponse,
            )
            yield f"RemoveRaftVoter, {name}", self._plain(gone)

    # -- AlterPartitionReassignments, ListPartitionReassignments -----------------------------------

    def _reassignments(self) -> Iterator[Answer]:
        cases: Mapping[str, list[tuple[str, int, list[int] | None]]] = {
            "the same": [(TOPIC, 0, [NODE])],
            "nobody": [(TOPIC, 0, [])],
            "twice the same": [(TOPIC, 0, [NODE, NODE])],
            "an unknown broker": [(TOPIC, 0, [NOBODY])],
            "an unknown broker twice": [(TOPIC, 0, [NOBODY, NOBODY])],
            "a negative broker": [(TOPIC, 0, [-1])],
            "one more, unknown": [(TOPIC, 0, [NODE, NOBODY])],
            "nothing to cancel": [(TOPIC, 0, None)],
            "an unknown topic": [("no-such-topic", 0, [NODE])],
            "an unknown topic, nobody": [("no-such-topic", 0, [])],
            "an unknown topic, cancelled": [("no-such-topic", 0, None)],
            "an unknown partition": [(TOPIC, 9, [NODE])],
            "a negative partition": [(TOPIC, -1, [NODE])],
            "an invalid topic": [("", 0, [NODE])],
            "good and bad": [(TOPIC, 0, [NODE]), (TOPIC, 1, [NOBODY]), (TOPIC, 9, None)],
            "a partition twice": [(TOPIC, 0, [NODE]), (TOPIC, 0, [NOBODY])],
            "nothing": [],
        }
        for name, wanted in cases.items():
            for may_change in (True, False):
                topics: dict[str, ReassignableTopic] = {}
                for topic, partition, brokers in wanted:
                    entry = topics.setdefault(topic, ReassignableTopic(name=topic))
                    entry.partitions.append(
                        ReassignablePartition(partition_index=partition, replicas=brokers)
                    )
                request = AlterPartitionReassignmentsRequest(
                    allow_replication_factor_change=may_change, topics=list(topics.values())
                )
                answer = self._wire.ask(request, 1, AlterPartitionReassignmentsResponse)
                suffix = "" if may_change else ", same factor"
                yield f"AlterPartitionReassignments, {name}{suffix}", self._plain(answer)
        asked: Mapping[str, list[TopicPartitions] | None] = {
            "all": None,
            "none": [],
            "an unknown topic": _partitions("no-such-topic", 0),
            "an unknown partition": _partitions(TOPIC, 0, 9),
        }
        for name, named in asked.items():
            listed = self._wire.ask(
                ListPartitionReassignmentsRequest(topics=named),
                0,
                ListPartitionReassignmentsResponse,
            )
            yield f"ListPartitionReassignments, {name}", self._plain(listed)

    # -- transactions and producers ----------------------------------------------------------------

    def _begin(self, transactional_id: str) -> tuple[int, int]:
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])

        def begun() -> InitProducerIdResponse | None:
            found = self._wire.ask(find, 4, FindCoordinatorResponse)
            if found.coordinators[0].error_code:
                return None
            init = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=60_000
            )
            answer = self._wire.ask(init, 4, InitProducerIdResponse)
            return None if answer.error_code else answer

        answer = wait_until(begun, timeout_s=60, what=f"{transactional_id} has a producer id")
        assert answer is not None
        self._producer_names[answer.producer_id] = f"<producer of {transactional_id}>"
        return answer.producer_id, answer.producer_epoch

    def _transactions(self) -> Iterator[Answer]:
        self._begin(EMPTY)
        producer, epoch = self._begin(OPEN)
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=OPEN,
            v3_and_below_producer_id=producer,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=_partitions(TOPIC, 0),
        )
        wait_until(
            lambda: (
                not self._wire.ask(add, 3, AddPartitionsToTxnResponse)
                .results_by_topic_v3_and_below[0]
                .partitions[0]
                .error_code
            ),
            what="the transaction is open",
        )
        described = {
            "unknown": ["no-such-transaction"],
            "an empty id": [""],
            "an empty one": [EMPTY],
            "an open one": [OPEN],
            "one twice": [EMPTY, EMPTY],
            "several": [OPEN, "no-such-transaction", EMPTY],
            "none": [],
        }
        for name, ids in described.items():
            answer = self._wire.ask(
                DescribeTransactionsRequest(transactional_ids=ids), 0, DescribeTransactionsResponse
            )
            for state in answer.transaction_states:
                state.transaction_start_time_ms = min(state.transaction_start_time_ms, 1)
                state.producer_epoch = 0
            yield f"DescribeTransactions, {name}", self._plain(answer)
        yield from self._lists(producer)
        end = EndTxnRequest(
            transactional_id=OPEN, producer_id=producer, producer_epoch=epoch, committed=False
        )
        wait_until(lambda: not self._wire.ask(end, 3, EndTxnResponse).error_code)

    def _lists(self, producer: int) -> Iterator[Answer]:
        listed: Mapping[str, ListTransactionsRequest] = {
            "all": ListTransactionsRequest(),
            "Ongoing": ListTransactionsRequest(state_filters=["Ongoing"]),
            "in small letters": ListTransactionsRequest(state_filters=["ongoing"]),
            "an unknown state": ListTransactionsRequest(state_filters=["Foo", "Empty", "Foo"]),
            "only unknown states": ListTransactionsRequest(state_filters=["Foo", ""]),
            "Dead": ListTransactionsRequest(state_filters=["Dead"]),
            "PrepareEpochFence": ListTransactionsRequest(state_filters=["PrepareEpochFence"]),
            "a producer": ListTransactionsRequest(producer_id_filters=[producer]),
            "an unknown producer": ListTransactionsRequest(producer_id_filters=[999_999]),
            "a duration of 0": ListTransactionsRequest(duration_filter=0),
            "a duration of -5": ListTransactionsRequest(duration_filter=-5),
            "a duration of an hour": ListTransactionsRequest(duration_filter=3_600_000),
            "an empty pattern": ListTransactionsRequest(transactional_id_pattern=""),
            "a pattern": ListTransactionsRequest(transactional_id_pattern="operations-o.*"),
            "a part of a pattern": ListTransactionsRequest(transactional_id_pattern="operations"),
            "a bad pattern": ListTransactionsRequest(transactional_id_pattern="(["),
        }
        for name, request in listed.items():
            answer = self._wire.ask(request, 2, ListTransactionsResponse)
            answer.transaction_states.sort(key=lambda each: each.transactional_id)
            answer.unknown_state_filters.sort()
            yield f"ListTransactions, {name}", self._plain(answer)

    def _producers(self) -> Iterator[Answer]:
        cases = {
            "nobody": _partitions(TOPIC, 1),
            "an unknown topic": _partitions("no-such-topic", 0),
            "an invalid topic": _partitions("", 0),
            "an unknown partition": _partitions(TOPIC, 9),
            "a negative partition": _partitions(TOPIC, -1),
            "several": [*_partitions(TOPIC, 1, 9), *_partitions("no-such-topic", 0)],
            "none": [],
        }
        for name, topics in cases.items():
            answer = self._wire.ask(
                DescribeProducersRequest(topics=topics), 0, DescribeProducersResponse
            )
            yield f"DescribeProducers, {name}", self._plain(answer)

    # -- AlterReplicaLogDirs, DescribeLogDirs ------------------------------------------------------

    def _log_directories(self) -> Iterator[Answer]:
        first, second = self._directories
        place = self._where(0)
        other = second if place == first else first
        cases = {
            "a path that is none": ("/no/such/directory", _partitions(TOPIC, 0)),
            "a relative path": ("data", _partitions(TOPIC, 0)),
            "an empty path": ("", _partitions(TOPIC, 0)),
            "with a slash at its end": (f"{place}/", _partitions(TOPIC, 0)),
            "where it is": (place, _partitions(TOPIC, 0)),
            "an unknown topic": (other, _partitions("no-such-topic", 0)),
            "an unknown partition": (other, _partitions(TOPIC, 9)),
            "no path, no topic": ("/no/such/directory", _partitions("no-such-topic", 0)),
        }
        for name, (path, topics) in cases.items():
            yield f"AlterReplicaLogDirs, {name}", self._move(path, topics)
        # KIP-1066: what is cordoned gets no new replicas.
        for name, value in (
            ("a directory", other),
            ("a directory that is none", "/no/such/directory"),
            ("one that is none beside one", f"{other},/no/such/directory"),
            ("all", "*"),
            ("all and one", f"*,{other}"),
            ("a relative path", "data"),
            ("nothing", ""),
        ):
            for operation, verb in ((0, "set"), (2, "append")):
                code = self._configure(value, operation)
                yield f"cordoned.log.dirs, {verb}: {name}", code
                self._configure(None, 1)
        default = self._configure("/no/such/directory", 0, "")
        yield "cordoned.log.dirs, the default of the cluster", default
        self._configure(None, 1, "")
        for path, name in ((place, "where it is"), (other, "elsewhere")):
            self._configure(path, 0)
            wait_until(partial(self._is_cordoned, path), what=f"{path} is cordoned")
            yield f"AlterReplicaLogDirs, cordoned, {name}", self._move(path, _partitions(TOPIC, 0))
            unknown = self._move(path, _partitions("no-such-topic", 0))
            yield f"AlterReplicaLogDirs, cordoned, {name}, an unknown topic", unknown
        self._configure(None, 1)

    def _where(self, partition: int) -> str:
        described = self._wire.ask(DescribeLogDirsRequest(topics=None), 5, DescribeLogDirsResponse)
        return next(
            result.log_dir
            for result in described.results
            for topic in result.topics
            if topic.name == TOPIC
            and any(each.partition_index == partition for each in topic.partitions)
        )

    def _move(self, path: str, topics: list[TopicPartitions]) -> object:
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])
        return self._plain(self._wire.ask(request, 2, AlterReplicaLogDirsResponse))

    def _configure(self, value: str | None, operation: int, broker: str = str(NODE)) -> object:
        config = IncrementalAlterableConfig(
            name="cordoned.log.dirs", config_operation=operation, value=value
        )
        resource = IncrementalAlterConfigsResource(
            resource_type=_BROKER, resource_name=broker, configs=[config]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (answer,) = self._wire.ask(request, 1, IncrementalAlterConfigsResponse).responses
        message = answer.error_message
        for path, name in self._names.items():
            if message is not None:
                message = message.replace(path, name)
        return [answer.error_code, message]

    def _is_cordoned(self, path: str) -> bool:
        described = self._wire.ask(DescribeLogDirsRequest(topics=[]), 5, DescribeLogDirsResponse)
        return all(each.is_cordoned == (each.log_dir == path) for each in described.results)

    # -- UnregisterBroker --------------------------------------------------------------------------

    def _brokers(self) -> Iterator[Answer]:
        for name, broker in (("unknown", NOBODY), ("negative", -1), ("alive", NODE)):
            answer = self._wire.ask(
                UnregisterBrokerRequest(broker_id=broker), 0, UnregisterBrokerResponse
            )
            yield f"UnregisterBroker, {name}", self._plain(answer)

    def _plain(self, answer: object, *more: str) -> object:
        """The answer as JSON, without the throttle time."""
        plain = self._json(dataclasses.asdict(answer))  # type: ignore[call-overload]  # a message
        assert isinstance(plain, dict)
        plain.pop("throttle_time_ms", None)
        return [plain, *more] if more else plain

    def _json(self, value: object) -> object:
        if isinstance(value, dict):
            plain = {key: self._json(each) for key, each in value.items()}
            if not plain.get("error_code") and "producer_id" in plain:
                plain["producer_id"] = self._producer_names[value["producer_id"]]
            return plain
        if isinstance(value, list):
            return [self._json(each) for each in value]
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, str):
            for text, name in self._names.items():
                value = value.replace(text, name)
        return value


def _partitions(topic: str, *indexes: int) -> list[TopicPartitions]:
    return [TopicPartitions(name=topic, partitions=list(indexes))]


if __name__ == "__main__":
    with WireClient(sys.argv[1]) as client:
        recorded = list(OperationsDialogue(client, sys.argv[2:]).answers())
    lines = [f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in recorded]
    KAFKA_ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
