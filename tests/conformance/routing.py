"""Sends each request of a conformance test to the node that it belongs to, as a client library
does: to the leader of its partitions, to the coordinator of its group or transactional id, or to
the broker that it is about. The tests say the same to one node and to three.

Nothing is hidden from a test: errors are given to it as they are. Only while nodes restart is a
request repeated after the errors that Kafka's protocol has for that; see `Restarts`.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, Final, Self, TypeAlias, TypeVar

from odradek.node.router.handlers.groups import (
    KEY_TYPE_GROUP,
    KEY_TYPE_SHARE,
    KEY_TYPE_TRANSACTION,
)
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from odradek.protocol.types import Uuid, uuid_to_text
from tests.support.waiting import wait_until
from tests.support.wire import ClosedByPeer, Router, WireClient, api_of

R = TypeVar("R")

Topic = str | Uuid
"""A topic's name, or its id."""

Message: TypeAlias = Any
"""A request of any API, or a part of one: which fields it has is what the tables here say."""

METADATA_VERSION: Final = 12
FIND_COORDINATOR_VERSION: Final = 6
OF_BROKERS: Final = frozenset({4, 8})
"""The types of a broker's configs and loggers."""

RETRIABLE: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""What a client hears of a node that has gone or just come: it asks again where to go."""
ARE_RESTARTED: Final = os.environ.get("CONFORMANCE_RESTARTS", "0") == "1"
"""Whether the nodes under test are restarted in turn meanwhile."""
REPLICAS_MAX: Final = 3
REPEATED_FOR_S: Final = 60.0
PAUSE_S: Final = 0.05


def _by_partition(
    topics: str, names: Sequence[str], partitions: str, index: str | None
) -> Callable[[Message], Iterator[tuple[Topic, int]]]:
    """Reads the partitions of a request from the fields of these names; a topic has the first of
    `names` that is not empty."""

    def read(request: Message) -> Iterator[tuple[Topic, int]]:
        for topic in getattr(request, topics) or ():
            name = next(filter(any, (getattr(topic, each) for each in names)), "")
            for partition in getattr(topic, partitions):
                yield name, partition if index is None else getattr(partition, index)

    return read


def _of_markers(request: Message) -> Iterator[tuple[Topic, int]]:
    for marker in request.markers:
        for topic in marker.topics:
            for partition in topic.partitions:
                yield topic.name, partition


PARTITIONS: Final[dict[int, Callable[[Message], Iterator[tuple[Topic, int]]]]] = {
    ApiKey.PRODUCE: _by_partition("topic_data", ["name", "topic_id"], "partition_data", "index"),
    ApiKey.FETCH: _by_partition("topics", ["topic", "topic_id"], "partitions", "partition"),
    ApiKey.LIST_OFFSETS: _by_partition("topics", ["name"], "partitions", "partition_index"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _by_partition("topics", ["topic"], "partitions", "partition"),
    ApiKey.DELETE_RECORDS: _by_partition("topics", ["name"], "partitions", "partition_index"),
    ApiKey.DESCRIBE_PRODUCERS: _by_partition("topics", ["name"], "partitions", None),
    ApiKey.WRITE_TXN_MARKERS: _of_markers,
    ApiKey.SHARE_FETCH: _by_partition("topics", ["topic_id"], "partitions", "partition_index"),
    ApiKey.SHARE_ACKNOWLEDGE: _by_partition(
        "topics", ["topic_id"], "partitions", "partition_index"
    ),
}

GROUPS: Final = frozenset(
    {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    }
)
"""Requests about one group."""
GROUP_LISTS: Final = {
    ApiKey.OFFSET_FETCH: ("groups", "groups"),
    ApiKey.DESCRIBE_GROUPS: ("groups", "groups"),
    ApiKey.DELETE_GROUPS: ("groups_names", "results"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ("group_ids", "groups"),
    ApiKey.SHARE_GROUP_DESCRIBE: ("group_ids", "groups"),
    ApiKey.STREAMS_GROUP_DESCRIBE: ("group_ids", "groups"),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ("groups", "groups"),
}
"""Requests about several groups: the fields of request and response that have them."""
OF_ALL_NODES: Final = {
    ApiKey.LIST_GROUPS: "groups",
    ApiKey.LIST_TRANSACTIONS: "transaction_states",
}
"""What each node answers for itself: the field of the response."""
TRANSACTIONS: Final = frozenset(
    {ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN}
)
SHARE_STATES: Final = frozenset(
    {
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
CONFIGS: Final = frozenset(
    {ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS}
)
"""Requests about resources, of which a broker and its loggers are that broker's."""
IN_TRANSACTIONS: Final = frozenset({ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.DESCRIBE_TRANSACTIONS})
"""Requests about transactions that older and newer versions name in different fields."""
OF_THE_NODE_ASKED: Final = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.PUSH_TELEMETRY,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
    }
)
"""About the connection, or about what that node alone has: the next one of a dialogue goes to the
node that answered the last."""
OF_ANY_NODE: Final = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.FIND_COORDINATOR,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    }
)
"""What every node knows, or has the controller do."""


class Nodes:
    """The nodes of the cluster under test, and who leads and coordinates what, asked anew each
    time."""

    def __init__(self, bootstrap: str) -> None:
        self.addresses: Final = [each.strip() for each in bootstrap.split(",")]
        self._asked: WireClient | None = None
        self._each: dict[str, WireClient] = {}
        self._turn = itertools.cycle(self.addresses)
        self.ids: Final = wait_until(self._everybodys_ids, what="all nodes are registered")

    def _everybodys_ids(self) -> dict[str, int]:
        """The ids by address; none as long as a node is missing: each is ready before the others
        know of it."""
        with self.connect() as wire:
            answer = wire.ask(MetadataRequest(topics=[]), METADATA_VERSION, MetadataResponse)
        found = {f"{node.host}:{node.port}": node.node_id for node in answer.brokers}
        return found if len(found) >= len(self.addresses) else {}

    def close(self) -> None:
        """Close the connections of its own."""
        for wire in (self._asked, *self._each.values()):
            if wire is not None:
                wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def next_address(self) -> str:
        """The address of one node after the other."""
        return next(self._turn)

    def connect(self, router: Router | None = None) -> WireClient:
        """A connection to some node that accepts it, each time another one."""
        for attempt in itertools.count(1):
            try:
                return WireClient(self.next_address(), router=router)
            except OSError:
                if attempt == len(self.addresses):
                    raise
        raise AssertionError("unreachable")

    def _ask(self, request: object, version: int, response: type[R]) -> R:
        for attempt in itertools.count(1):
            try:
                self._asked = self._asked or self.connect()
                return self._asked.ask(request, version, response)
            except (OSError, ClosedByPeer):
                if self._asked is not None:
                    self._asked.close()
                self._asked = None
                if attempt > len(self.addresses):
                    raise
        raise AssertionError("unreachable")

    def leader_of(self, topic: Topic, index: int) -> str | None:
        """The leader of the partition, or of another one of the topic if it has no such; None if
        it has none now."""
        asked = (
            MetadataRequestTopic(name=topic)
            if isinstance(topic, str)
            else MetadataRequestTopic(name=None, topic_id=topic)
        )
        request = MetadataRequest(topics=[asked], allow_auto_topic_creation=False)
        answer = self._ask(request, METADATA_VERSION, MetadataResponse)
        leaders = {each.partition_index: each.leader_id for each in answer.topics[0].partitions}
        if not leaders:
            return None
        leader = leaders.get(index, next(iter(leaders.values())))
        places = {node.node_id: f"{node.host}:{node.port}" for node in answer.brokers}
        return places.get(leader)

    def coordinator_of(self, key: str, kind: int) -> str | None:
        """The coordinator of a group, transactional id or share partition; None if it has none
        now."""
        version = FIND_COORDINATOR_VERSION if kind == KEY_TYPE_SHARE else 4
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        (found,) = self._ask(request, version, FindCoordinatorResponse).coordinators
        return None if found.error_code else f"{found.host}:{found.port}"

    def wait_until_known(self, topic: str, partitions: int) -> None:
        """Return when every node that is up tells of so many partitions with leaders."""
        for address in self.addresses:
            wait_until(
                lambda: self._knows(address, topic, partitions),  # noqa: B023  # called in the loop
                what=f"{address} knows {topic}",
            )

    def _knows(self, address: str, topic: str, partitions: int) -> bool:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        try:
            if address not in self._each:
                self._each[address] = WireClient(address)
            answer = self._each[address].ask(request, METADATA_VERSION, MetadataResponse)
        except (OSError, ClosedByPeer):
            if address in self._each:
                self._each.pop(address).close()
            return ARE_RESTARTED
        led = [each for each in answer.topics[0].partitions if each.leader_id >= 0]
        return len(led) >= partitions

    def address_of(self, node_id: int) -> str | None:
        """The address of a node; None if there is none of this id."""
        return next((address for address, each in self.ids.items() if each == node_id), None)


class ClientRouter:
    """What one client knows of the cluster (tests.support.wire.Router)."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._session_at: dict[ApiKey, str | None] = {}
        self._deadline = 0.0

    def parts_of(self, request: object) -> Sequence[tuple[object, str | None]]:
        """The groups of a request by coordinator; what each node answers for itself, from all."""
        key = _key_of(request)
        if key in OF_ALL_NODES:
            return [(request, address) for address in self._nodes.addresses]
        field, _ = GROUP_LISTS.get(key, ("", ""))
        groups: list[Any] = getattr(request, field) if field else []
        by_node: dict[str | None, list[Any]] = {}
        for group in groups:
            by_node.setdefault(self._group_coordinator(_group_id(group)), []).append(group)
        if len(by_node) < 2:
            return [(request, None)]
        return [(_with(request, field, part), node) for node, part in by_node.items()]

    def merged(self, request: object, answers: Sequence[R]) -> R:
        """The first answer with the groups or transactions of all."""
        key = _key_of(request)
        field = OF_ALL_NODES[key] if key in OF_ALL_NODES else GROUP_LISTS[key][1]
        everything = [each for answer in answers for each in getattr(answer, field)]
        return _with(answers[0], field, everything)

    def address_of(self, request: object, attempt: int) -> str | None:
        """The node that must be asked; None if any node will do."""
        key = _key_of(request)
        place = self._place_of(key, request)
        if place is None and attempt > 0:
            return self._nodes.next_address()
        return place

    def _place_of(self, key: ApiKey, request: Message) -> str | None:
        if key in PARTITIONS:
            return self._leader(key, request)
        groups: list[Message] = getattr(request, GROUP_LISTS.get(key, ("", ""))[0], [])
        if groups or key in GROUPS:
            return self._group_coordinator(_group_id(groups[0] if groups else request))
        if key in TRANSACTIONS and request.transactional_id is not None:
            return self._nodes.coordinator_of(request.transactional_id, KEY_TYPE_TRANSACTION)
        if key == ApiKey.ADD_PARTITIONS_TO_TXN and request.v3_and_below_transactional_id:
            name = request.v3_and_below_transactional_id
            return self._nodes.coordinator_of(name, KEY_TYPE_TRANSACTION)
        if key == ApiKey.DESCRIBE_TRANSACTIONS and request.transactional_ids:
            return self._nodes.coordinator_of(request.transactional_ids[0], KEY_TYPE_TRANSACTION)
        if key in SHARE_STATES:
            topic, *_ = request.topics
            share = f"{request.group_id}:{uuid_to_text(topic.topic_id)}"
            name = f"{share}:{topic.partitions[0].partition}"
            return self._nodes.coordinator_of(name, KEY_TYPE_SHARE)
        if key in CONFIGS:
            return self._broker(request)
        return None

    def _group_coordinator(self, group: str) -> str | None:
        return self._nodes.coordinator_of(group, KEY_TYPE_GROUP)

    def _leader(self, key: ApiKey, request: Message) -> str | None:
        """The leader of all partitions of the request. One of none belongs to the last session."""
        named = list(PARTITIONS[key](request))
        if not named:
            return self._session_at.get(key)
        leaders = {self._nodes.leader_of(topic, index) for topic, index in named} - {None}
        assert len(leaders) <= 1, f"no client sends this to one node: {request}"
        self._session_at[key] = next(iter(leaders), None)
        return self._session_at[key]

    def _broker(self, request: Message) -> str | None:
        """The broker whose configs are asked for; a topic's are known everywhere."""
        for resource in request.resources:
            if resource.resource_type in OF_BROKERS and resource.resource_name.isdigit():
                return self._nodes.address_of(int(resource.resource_name))
        return None

    def is_repeated(self, request: object, answer: object, attempt: int) -> bool:
        """Only while nodes restart, and for a minute."""
        if not ARE_RESTARTED:
            return False
        if attempt == 0:
            self._deadline = time.monotonic() + REPEATED_FOR_S
        is_gone = isinstance(answer, OSError | ClosedByPeer)
        if not (is_gone or RETRIABLE.intersection(_codes(answer))):
            return False
        time.sleep(PAUSE_S)
        return time.monotonic() < self._deadline


def _key_of(request: object) -> ApiKey:
    return ApiKey(api_of(request).key)


def _group_id(group: Message) -> str:
    """Of a request or an element of its list: the name itself, or a structure that has it."""
    name: str = group if isinstance(group, str) else group.group_id
    return name


def _with(message: R, field: str, value: object) -> R:
    """The same message with another value of one field."""
    changed = copy(message)
    setattr(changed, field, value)
    return changed


def _codes(answer: object) -> Iterator[int]:
    """All error codes of an answer, at any depth."""
    if isinstance(answer, list):
        for each in answer:
            yield from _codes(each)
    elif is_dataclass(answer):
        for field in fields(answer):
            value = getattr(answer, field.name)
            if field.name == "error_code":
                yield value
            elif isinstance(value, list) or is_dataclass(value):
                yield from _codes(value)
