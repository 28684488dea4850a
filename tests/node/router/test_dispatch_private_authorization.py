"""What a client needs for our private APIs (from 20001 on), and for the APIs of brokers.

Kafka has no answers to the former, and to the latter, with CLUSTER_ACTION, a broker's: the answers
are in the table, for every right. A thing that does not exist is denied like one that does.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest

from odradek.node.router.dispatch import HANDLERS
from odradek.node.router.handlers.rewinds import TO_BEFORE, TO_SNAPSHOT
from odradek.protocol.apis import PRIVATE_KEY_MIN, ApiKey
from odradek.protocol.messages import (
    clients,
    configs,
    diagnostics,
    rewinds,
    share_state,
    traces,
)
from odradek.protocol.messages.partitions import TopicIdPartitions, TopicPartitions
from odradek.protocol.messages.transactions import WritableTxnMarker, WriteTxnMarkersRequest
from tests.support.authorization_cases import (
    GROUP,
    NO_GROUP,
    NO_ID,
    NO_TOPIC,
    RIGHTS,
    TOPIC,
    Made,
    right,
)
from tests.support.authorization_harness import SNAPSHOT, AuthorizedHarness, authorized_harness
from tests.support.wire import api_of

DESCRIBE_TOPIC: Final = "TOPIC:READ TOPIC:WRITE TOPIC:DELETE TOPIC:ALTER TOPIC:DESCRIBE"
DESCRIBE_GROUP: Final = "GROUP:READ GROUP:DELETE GROUP:DESCRIBE"
DESCRIBE_CLUSTER: Final = "CLUSTER:ALTER CLUSTER:DESCRIBE"
DESCRIBE_CONFIGS: Final = "CLUSTER:DESCRIBE_CONFIGS CLUSTER:ALTER_CONFIGS"
CLUSTER_ACTION: Final = "CLUSTER:CLUSTER_ACTION"
OF_BROKERS: Final = {
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    ApiKey.RELOAD_SHARE_STATE,
}


class Row(NamedTuple):
    """A request, the answer without a right beside `base`, and the answers with one, by the rights
    that lead to them."""

    name: str
    request: Callable[[Made], object]
    denied: str
    allowed: dict[str, str]
    base: str = ""

    def expected(self) -> dict[str, str]:
        """The answer for each right."""
        answers = dict.fromkeys(map(str, RIGHTS), self.denied)
        for answer, rights in self.allowed.items():
            answers |= dict.fromkeys(rights.split(), answer)
        return answers


def rewound(**fields: object) -> Callable[[Made], object]:
    return lambda _: rewinds.RewindGroupRequest(group_id=GROUP, is_dry_run=True, **fields)  # type: ignore[arg-type]  # its fields


def rewound_topics(*names: str) -> Callable[[Made], object]:
    at = rewinds.RewindGroupRequestPartition()
    return rewound(
        topics=[rewinds.RewindGroupRequestTopic(name=name, partitions=[at]) for name in names]
    )


def of_state(request: type, topic: type, partition: type) -> Callable[[Made], object]:
    """A request of one partition's share state, as a broker sends it."""
    return lambda made: request(
        group_id=GROUP,
        topics=[topic(topic_id=made.topic_id, partitions=[partition(partition=0)])],
    )


def no_topics(**partition: int) -> str:
    """The refusal of a partition of each topic."""
    return ", ".join(
        f"(name={name} partitions=[(error_code={code})])" for name, code in partition.items()
    )


TABLE: Final = (
    Row(
        "RewindGroup",
        rewound_topics(TOPIC, NO_TOPIC),
        "error_code=30 topics=[]",
        {f"error_code=29 topics=[{no_topics(t=29, z=29)}]": "GROUP:READ"},
    ),
    Row(
        "RewindGroup of a group's reader",
        rewound_topics(TOPIC, NO_TOPIC),
        f"error_code=29 topics=[{no_topics(t=29, z=29)}]",
        {f"error_code=3 topics=[{no_topics(z=3)}]": "TOPIC:READ"},
        base="GROUP:READ",
    ),
    Row(
        "RewindGroup to a snapshot",
        rewound(target=TO_SNAPSHOT, snapshot=SNAPSHOT),
        "error_code=29 topics=[]",
        {
            f"error_code=29 topics=[{no_topics(t=29)}]": (
                "TOPIC:WRITE TOPIC:DELETE TOPIC:ALTER TOPIC:DESCRIBE"
            ),
            f"error_code=0 topics=[{no_topics(t=0)}]": "TOPIC:READ",
        },
        base="GROUP:READ",
    ),
    Row(
        "RewindGroup to before a rewind",
        rewound(target=TO_BEFORE),
        "error_code=30 topics=[]",
        {"error_code=91 topics=[]": "GROUP:READ"},
    ),
    Row(
        "ExplainGroup",
        lambda _: diagnostics.ExplainGroupRequest(group_ids=[GROUP, NO_GROUP]),
        "error_code=0 groups=["
        "(error_code=30 group_id=g members=none commits=none events=none), "
        "(error_code=30 group_id=n members=none commits=none events=none)]",
        {
            "error_code=0 groups=["
            "(error_code=0 group_id=g members=none commits=none events=none), "
            "(error_code=69 group_id=n members=none commits=none events=none)]": DESCRIBE_GROUP
        },
    ),
    Row(
        "ExplainGroup of all groups",
        lambda _: diagnostics.ExplainGroupRequest(group_ids=None),
        "error_code=0 groups=[]",
        {
            "error_code=0 groups=["
            "(error_code=0 group_id=g members=none commits=none events=none)]": DESCRIBE_GROUP
        },
    ),
    Row(
        "ExplainGroup of a group's describer",
        lambda _: diagnostics.ExplainGroupRequest(group_ids=[GROUP]),
        "error_code=0 groups=[(error_code=0 group_id=g members=none commits=none events=none)]",
        {
            "error_code=0 groups=["
            "(error_code=0 group_id=g members=none commits=some events=none)]": DESCRIBE_TOPIC
        },
        base="GROUP:DESCRIBE",
    ),
    Row(
        "ExplainTopic",
        lambda _: diagnostics.ExplainTopicRequest(
            topics=[diagnostics.ExplainTopicRequestTopic(name=name) for name in (TOPIC, NO_TOPIC)]
        ),
        "topics=[(name=t error_code=29 partitions=[]), (name=z error_code=29 partitions=[])]",
        {
            "topics=[(name=t error_code=0 partitions=[(error_code=0 readers=[] sharing=none)]),"
            " (name=z error_code=3 partitions=[])]": DESCRIBE_TOPIC,
            "topics=[(name=t error_code=0 partitions="
            "[(error_code=0 readers=[(error_code=0)] sharing=none)]),"
            " (name=z error_code=3 partitions=[])]": "TOPIC:READ",
        },
    ),
    Row(
        "DescribeLag",
        lambda _: diagnostics.DescribeLagRequest(
            topics=[
                diagnostics.DescribeLagRequestTopic(
                    name=name, partitions=[diagnostics.DescribeLagRequestPartition()]
                )
                for name in (TOPIC, NO_TOPIC)
            ]
        ),
        f"topics=[{no_topics(t=29, z=29)}]",
        {f"topics=[{no_topics(t=0, z=3)}]": DESCRIBE_TOPIC},
    ),
    Row(
        "DescribeRewinds",
        lambda _: rewinds.DescribeRewindsRequest(group_id=GROUP),
        "error_code=30 undo_points=none snapshots=none",
        {"error_code=0 undo_points=none snapshots=some": DESCRIBE_GROUP},
    ),
    Row(
        "DescribeRewinds of no group",
        lambda _: rewinds.DescribeRewindsRequest(group_id=NO_GROUP),
        "error_code=30 undo_points=none snapshots=none",
        {"error_code=69 undo_points=none snapshots=none": DESCRIBE_GROUP},
    ),
    Row(
        "AlterSnapshot",
        lambda _: rewinds.AlterSnapshotRequest(group_id=NO_GROUP, name=SNAPSHOT, is_deletion=True),
        "error_code=30 topics=none",
        {"error_code=69 topics=none": "GROUP:READ"},
    ),
    Row(
        "DescribeConfigSources",
        lambda _: configs.DescribeConfigSourcesRequest(keys=None),
        "error_code=31 keys=none",
        {"error_code=0 keys=none": DESCRIBE_CONFIGS},
    ),
    Row(
        "DescribeClients",
        lambda _: clients.DescribeClientsRequest(),
        "error_code=31 clients=none instances=none",
        {"error_code=0 clients=none instances=none": DESCRIBE_CLUSTER},
    ),
    Row(
        "TraceRequests",
        lambda _: traces.TraceRequestsRequest(session_id=b"s" * 16),
        "error_code=31 requests=none",
        {"error_code=0 requests=none": "CLUSTER:ALTER"},
    ),
    # -- of brokers --------------------------------------------------------------------------------
    Row(
        "ReloadShareState",
        lambda made: rewinds.ReloadShareStateRequest(
            group_id=GROUP,
            topics=[
                TopicIdPartitions(topic_id=each, partitions=[0]) for each in (made.topic_id, NO_ID)
            ],
        ),
        "error_code=31",
        {"error_code=6": CLUSTER_ACTION},
    ),
    Row(
        "WriteTxnMarkers",
        lambda _: WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=4242,
                    topics=[
                        TopicPartitions(name=name, partitions=[0]) for name in (TOPIC, NO_TOPIC)
                    ],
                )
            ]
        ),
        f"markers=[(topics=[{no_topics(t=31, z=31)}])]",
        # An administrator aborts a hanging transaction with ALTER (KIP-664).
        {f"markers=[(topics=[{no_topics(t=0, z=3)}])]": f"{CLUSTER_ACTION} CLUSTER:ALTER"},
    ),
    Row(
        "InitializeShareGroupState",
        of_state(
            share_state.InitializeShareGroupStateRequest,
            share_state.InitializeStateData,
            share_state.InitializeShareGroupStatePartitionData,
        ),
        "results=[(id=t partitions=[(error_code=31)])]",
        {"results=[(id=t partitions=[(error_code=0)])]": CLUSTER_ACTION},
    ),
    Row(
        "ReadShareGroupState",
        of_state(
            share_state.ReadShareGroupStateRequest,
            share_state.ReadStateData,
            share_state.ReadShareGroupStatePartitionData,
        ),
        "results=[(id=t partitions=[(error_code=31 state_batches=none)])]",
        {"results=[(id=t partitions=[(error_code=0 state_batches=none)])]": CLUSTER_ACTION},
    ),
    Row(
        "WriteShareGroupState",
        of_state(
            share_state.WriteShareGroupStateRequest,
            share_state.WriteStateData,
            share_state.WriteShareGroupStatePartitionData,
        ),
        "results=[(id=t partitions=[(error_code=31)])]",
        {"results=[(id=t partitions=[(error_code=0)])]": CLUSTER_ACTION},
    ),
    Row(
        "ReadShareGroupStateSummary",
        of_state(
            share_state.ReadShareGroupStateSummaryRequest,
            share_state.ReadStateData,
            share_state.ReadShareGroupStatePartitionData,
        ),
        "results=[(id=t partitions=[(error_code=31)])]",
        {"results=[(id=t partitions=[(error_code=0)])]": CLUSTER_ACTION},
    ),
    Row(
        "DeleteShareGroupState",
        of_state(
            share_state.DeleteShareGroupStateRequest,
            share_state.DeleteStateData,
            share_state.DeleteShareGroupStatePartitionData,
        ),
        "results=[(id=t partitions=[(error_code=31)])]",
        {"results=[(id=t partitions=[(error_code=0)])]": CLUSTER_ACTION},
    ),
)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorizedHarness]:
    with authorized_harness(tmp_path_factory.mktemp("authorization")) as harness:
        yield harness


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_request_needs_these_rights(harness: AuthorizedHarness, row: Row) -> None:
    base = tuple(map(right, row.base.split()))
    harness.give(base)
    assert harness.ask(row.request(harness.made)) == row.denied
    expected = {name: answer for name, answer in row.expected().items() if right(name) not in base}
    answers = {}
    for name in expected:
        harness.give((*base, right(name)))
        answers[name] = harness.ask(row.request(harness.made))
    assert answers == expected


def test_every_private_api_and_every_one_of_brokers_is_in_the_table() -> None:
    asked = {api_of(row.request(Made(NO_ID, b""))).key for row in TABLE}
    private = {key for key in HANDLERS if key >= PRIVATE_KEY_MIN}
    assert asked == private | OF_BROKERS
