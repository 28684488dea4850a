"""The largest request of each API keeps nobody waiting: the counts are at their limits.

A probe sends Metadata, Produce, Fetch and Heartbeat every 5 ms meanwhile; its longest wait is
printed and asserted (tests/support/hostile_work.py). Batches and logs are in
test_hostile_records.py.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import elements_max_of
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from odradek.protocol.messages.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tests.e2e.conftest import Report
from tests.support.hostile_work import (
    CLOSED,
    GROUP,
    NO_COORDINATOR,
    TRANSACTIONAL_ID,
    WIDE,
    WIDE_PARTITIONS,
    Ground,
    attack,
    error_codes,
    ground_of,
    init_producer,
)
from tests.support.largest_requests import RequestFiller, largest_request
from tests.support.wire import WireClient, frame_of

REQUEST_BYTES_MAX: Final = (8 << 20) - 1000
TRANSACTIONAL_IDS: Final = 2_000
ID_LENGTH: Final = 1_000

LARGEST: Final = (
    (ApiKey.FETCH, "topics"),
    (ApiKey.FETCH, "topics.partitions"),
    (ApiKey.LIST_OFFSETS, "topics.partitions"),
    (ApiKey.METADATA, "topics"),
    (ApiKey.OFFSET_COMMIT, "topics.partitions"),
    (ApiKey.OFFSET_FETCH, "groups"),
    (ApiKey.OFFSET_FETCH, "groups.topics.partition_indexes"),
    (ApiKey.FIND_COORDINATOR, "coordinator_keys"),
    (ApiKey.JOIN_GROUP, "protocols"),
    (ApiKey.LEAVE_GROUP, "members"),
    (ApiKey.SYNC_GROUP, "assignments"),
    (ApiKey.DESCRIBE_GROUPS, "groups"),
    (ApiKey.LIST_GROUPS, "states_filter"),
    (ApiKey.CREATE_TOPICS, "topics"),
    (ApiKey.CREATE_TOPICS, "topics.configs"),
    (ApiKey.DELETE_TOPICS, "topics"),
    (ApiKey.DELETE_RECORDS, "topics.partitions"),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, "topics.partitions"),
    (ApiKey.ADD_PARTITIONS_TO_TXN, "transactions.topics"),
    (ApiKey.ADD_PARTITIONS_TO_TXN, "transactions.topics.partitions"),
    (ApiKey.WRITE_TXN_MARKERS, "markers.topics.partitions"),
    (ApiKey.TXN_OFFSET_COMMIT, "topics.partitions"),
    (ApiKey.DESCRIBE_CONFIGS, "resources"),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, "resources"),
    (ApiKey.DESCRIBE_LOG_DIRS, "topics.partitions"),
    (ApiKey.CREATE_PARTITIONS, "topics"),
    (ApiKey.DELETE_GROUPS, "groups_names"),
    (ApiKey.ELECT_LEADERS, "topic_partitions.partitions"),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, "topics.partitions"),
    (ApiKey.OFFSET_DELETE, "topics.partitions"),
    (ApiKey.DESCRIBE_PRODUCERS, "topics.partitions"),
    (ApiKey.DESCRIBE_TRANSACTIONS, "transactional_ids"),
    (ApiKey.LIST_TRANSACTIONS, "producer_id_filters"),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, "subscribed_topic_names"),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, "group_ids"),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, "topics"),
    (ApiKey.INITIALIZE_SHARE_GROUP_STATE, "topics.partitions"),
    (ApiKey.READ_SHARE_GROUP_STATE, "topics.partitions"),
    (ApiKey.WRITE_SHARE_GROUP_STATE, "topics.partitions"),
    (ApiKey.DELETE_SHARE_GROUP_STATE, "topics.partitions"),
    (ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, "topics.partitions"),
    (ApiKey.STREAMS_GROUP_DESCRIBE, "group_ids"),
)

OF_A_TRANSACTION: Final = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground_of(tmp_path_factory.mktemp("hostile-work")) as ground:
        yield ground


def largest(ground: Ground, key: ApiKey, path: str, **values: object) -> bytes:
    """The frame of the largest request with these values, wherever they occur."""
    api = APIS[key]
    version = api.max_version
    usual: dict[str, object] = {"group_id": GROUP, "timeout_ms": 30_000, "max_wait_ms": 0}
    filler = RequestFiller(WIDE, ground.wide_id, WIDE_PARTITIONS, usual | values)
    request = largest_request(
        api,
        version,
        tuple(path.split(".")),
        filler,
        bytes_max=REQUEST_BYTES_MAX,
        elements_max=elements_max_of(key),
    )
    return frame_of(request, version, 1)


@pytest.mark.parametrize(("key", "path"), LARGEST, ids=lambda value: getattr(value, "name", value))
def test_the_largest_request_holds_nobody_up(
    ground: Ground, report: Report, key: ApiKey, path: str
) -> None:
    values = transaction(ground) if key in OF_A_TRANSACTION else {}
    answer = attack(ground, [largest(ground, key, path, **values)], report)
    assert answer is not CLOSED
    assert not NO_COORDINATOR.intersection(error_codes(answer))


def transaction(ground: Ground) -> dict[str, object]:
    """The fields of a new transaction, and of a commit of offsets that names no member."""
    with WireClient(ground.broker.bootstrap_servers) as wire:
        producer = init_producer(wire, TRANSACTIONAL_ID)
    return {
        "transactional_id": TRANSACTIONAL_ID,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "generation_id_or_member_epoch": -1,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
    }


@pytest.mark.parametrize(
    "key", [ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE], ids=lambda k: k.name
)
def test_the_largest_request_of_a_share_session_holds_nobody_up(
    ground: Ground, report: Report, key: ApiKey
) -> None:
    member = "AAAAAAAAAAAAAAAAAAAAAQ"
    opening = largest(
        ground,
        ApiKey.SHARE_FETCH,
        "topics.partitions",
        member_id=member,
        share_session_epoch=0,
        max_bytes=1 << 20,
        max_records=500,
        acknowledgement_batches=[],
    )
    frames = [opening]
    if key is ApiKey.SHARE_ACKNOWLEDGE:
        frames.append(
            largest(ground, key, "topics.partitions", member_id=member, share_session_epoch=1)
        )
    answer = attack(ground, frames, report)
    assert getattr(answer, "error_code", None) == ErrorCode.NONE


def test_more_elements_than_allowed_are_refused_at_once(ground: Ground, report: Report) -> None:
    names = [MetadataRequestTopic(name="t")] * (elements_max_of(ApiKey.METADATA) + 1)
    assert attack(ground, [frame_of(MetadataRequest(topics=names), 9, 1)], report) is CLOSED


def test_topics_that_are_missing_by_the_thousand_are_not_created(
    ground: Ground, report: Report
) -> None:
    names = [MetadataRequestTopic(name=f"missing-{number}") for number in range(20_000)]
    attack(ground, [frame_of(MetadataRequest(topics=names), 9, 1)], report)


def test_configs_of_one_topic_asked_again_and_again(ground: Ground, report: Report) -> None:
    resource = DescribeConfigsResource(resource_type=2, resource_name=WIDE, configuration_keys=None)
    request = DescribeConfigsRequest(
        resources=[resource] * 190_000, include_documentation=True, include_synonyms=True
    )
    attack(ground, [frame_of(request, 4, 1)], report)


# -- transactional ids -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transactional_ids(ground: Ground) -> int:
    """So many long transactional ids are known; their count."""
    with WireClient(ground.broker.bootstrap_servers) as wire:

        def init(number: int) -> InitProducerIdRequest:
            name = f"{'a' * ID_LENGTH}-{number}"
            return InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)

        init_producer(wire, f"{'a' * ID_LENGTH}-0")
        for start in range(1, TRANSACTIONAL_IDS, 100):
            numbers = range(start, min(start + 100, TRANSACTIONAL_IDS))
            for number in numbers:
                wire.post(init(number), 5)
            for _ in numbers:
                assert not wire.receive(InitProducerIdResponse).error_code
    return TRANSACTIONAL_IDS


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [("aa.*", True), ("(a|aa)*b", False), ("(a|b)*a(a|b){12}", False), ("(a?){90}-.*", False)],
)
def test_many_transactional_ids_are_matched(
    ground: Ground, report: Report, transactional_ids: int, pattern: str, *, matches: bool
) -> None:
    """KIP-1152."""
    request = ListTransactionsRequest(transactional_id_pattern=pattern)
    answer = attack(ground, [frame_of(request, 2, 1)], report)
    assert isinstance(answer, ListTransactionsResponse)
    assert not answer.error_code
    assert len(answer.transaction_states) == (transactional_ids if matches else 0)


@pytest.mark.parametrize("pattern", ["((a?){30}){30}b", "(((a?){30}){30}){30}b" * 100])
@pytest.mark.usefixtures("transactional_ids")
def test_a_pattern_that_would_take_long_is_refused(
    ground: Ground, report: Report, pattern: str
) -> None:
    request = ListTransactionsRequest(transactional_id_pattern=pattern)
    errors = {int(ErrorCode.INVALID_REGULAR_EXPRESSION): 1}
    attack(ground, [frame_of(request, 2, 1)], report, errors=errors)


# -- last: the topics stay -------------------------------------------------------------------------


def test_ten_thousand_partitions_are_created(ground: Ground, report: Report) -> None:
    """Their logs are created while they are described."""
    topic = CreatableTopic(name="huge", num_partitions=10_000, replication_factor=1)
    create = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    name = MetadataRequestTopic(name="huge")
    describe = frame_of(MetadataRequest(topics=[name]), 12, 2)
    attack(ground, [frame_of(create, 7, 1), *[describe] * 20], report)


def test_all_topics_are_described(ground: Ground, report: Report) -> None:
    attack(ground, [frame_of(MetadataRequest(topics=None), 12, 1)], report)
