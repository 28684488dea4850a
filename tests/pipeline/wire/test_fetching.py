"""Which batches are aborted; and fetches on three nodes, whose leaders move, in racks."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from odradek.pipeline.kafka_types import PartitionRange
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.fetching import PartitionFetcher, aborted_batches
from odradek.pipeline.wire.partition_reader import read_partition
from odradek.pipeline.wire.record_batches import batches_between
from odradek.pipeline.wire.requests import FetchAnswer
from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch
from tests.e2e.cluster import Cluster
from tests.e2e.cluster import cluster as cluster_of_nodes
from tests.support.waiting import wait_until

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class LogOfTransactions:
    """Writes batches of producers, and knows which of them are aborted in the end."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.end = 0
        self.open: dict[int, list[int]] = {}
        self.firsts: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        """Producer, first offset, and the offset of the marker."""
        self.aborted_batches: set[int] = set()

    def write(self, producer: int, count: int) -> None:
        records = [Record(self.end + index, 0, None, b"v", ()) for index in range(count)]
        self.data.append(
            build_batch(
                records,
                base_offset=self.end,
                attributes=TRANSACTIONAL if producer else 0,
                producer_id=producer or -1,
            )
        )
        if producer:
            self.firsts.setdefault(producer, self.end)
            self.open.setdefault(producer, []).append(self.end)
        self.end += count

    def finish(self, producer: int, kind: ControlType) -> None:
        batches = self.open.pop(producer, [])
        first = self.firsts.pop(producer, None)
        if kind is ControlType.ABORT:
            self.aborted_batches.update(batches)
            if first is not None:
                self.aborted.append((producer, first, self.end))
        marker = EndTransactionMarker(kind, 1)
        self.data.append(
            build_end_transaction_batch(
                marker, timestamp_ms=0, producer_id=producer, producer_epoch=0, base_offset=self.end
            )
        )
        self.end += 1


def answer_of(data: bytes, aborted: list[tuple[int, int]]) -> FetchAnswer:
    return FetchAnswer(
        error=0,
        high_watermark=0,
        last_stable_offset=0,
        log_start_offset=0,
        aborted=tuple(aborted),
        preferred_replica=-1,
        data=data,
        records_at=0,
        records_end=len(data),
    )


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["write", "write", "abort", "commit"])),
    max_size=40,
)


@given(STEPS, st.integers(0, 40))
def test_aborted_batches(steps: list[tuple[int, str]], skipped: int) -> None:
    log = LogOfTransactions()
    for producer, step in steps:
        if step == "write":
            log.write(producer, 1 + len(log.data) % 3)
        elif producer:
            log.finish(producer, ControlType.ABORT if step == "abort" else ControlType.COMMIT)
    for producer in list(log.open):
        log.finish(producer, ControlType.ABORT)
    # An answer from some batch on, with the aborted transactions that overlap it.
    data = b"".join(log.data[skipped:])
    batches = batches_between(data, 0, len(data))
    start = batches[0].base_offset if batches else log.end
    overlapping = [(producer, first) for producer, first, end in log.aborted if end >= start]
    found = aborted_batches(answer_of(data, overlapping), batches)
    assert found == {offset for offset in log.aborted_batches if offset >= start}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"replica.selector.class": RACK_AWARE_SELECTOR}
    with cluster_of_nodes(tmp_path_factory.mktemp("fetching"), settings=settings) as nodes:
        for node_id, node in nodes.nodes.items():
            node.settings["broker.rack"] = f"rack-{node_id}"
        nodes.start()
        yield nodes


def produce(nodes: Cluster, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": nodes.bootstrap_servers, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=0)
        assert producer.flush(60) == 0


@pytest.mark.slow
@pytest.mark.e2e
def test_a_leader_that_dies_is_followed(nodes: Cluster) -> None:
    nodes.create_at("moved", [[0, 1, 2]], {"min.insync.replicas": "2"})
    values = [b"%d" % number for number in range(60)]
    produce(nodes, "moved", values)
    with KafkaCluster(nodes.bootstrap_servers, timeout_s=60) as cluster:
        topic = cluster.topics(["moved"])["moved"]
        wanted = PartitionRange("moved", topic.topic_id, 0, 0, len(values))
        batches = read_partition(cluster, wanted, fetch_max_bytes=1, batch_rows=1)
        found = [value for _ in range(3) for value in next(batches).column("value").to_pylist()]
        nodes[0].kill()
        for batch in batches:
            found += batch.column("value").to_pylist()
        assert found == values
        nodes[0].start()
        nodes.wait_until_whole("moved")


def read_by(cluster: KafkaCluster, wanted: PartitionRange) -> set[int]:
    """Reads all of it. Returns who answered."""
    fetcher = PartitionFetcher(cluster, wanted, read_committed=True, fetch_max_bytes=1)
    found = [(piece.start, fetcher.answered_by) for piece in fetcher.pieces()]
    assert [start for start, _ in found] == list(range(wanted.start, wanted.end))
    return {answered_by for _, answered_by in found}


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize(("rack", "node"), [("rack-2", 2), ("rack-0", 0), ("else", 0), ("", 0)])
def test_the_follower_in_the_rack_is_read_from(nodes: Cluster, rack: str, node: int) -> None:
    topic = f"near-{rack}"
    nodes.create_at(topic, [[0, 1, 2]])
    produce(nodes, topic, [b"%d" % number for number in range(10)])
    with KafkaCluster(nodes.bootstrap_servers, rack=rack) as cluster:
        wanted = PartitionRange(topic, "", 0, 0, 10)
        # A follower is named once it has told the leader how far it is.
        wait_until(lambda: read_by(cluster, wanted) == {node}, what=f"{node} is read from")
