"""The state of partitions from the reports of brokers."""

import os

import pytest

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.group_queries import GroupQueries
from odradek.node.cli.partition_facts import collect_partition_views
from tests.node.cli.conftest import Run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif("TEST_BOOTSTRAP" in os.environ, reason="by APIs that only Odradek has"),
]


def test_partitions_that_do_not_exist_are_left_out(kafka: Run, topic: str, bootstrap: str) -> None:
    kafka("produce", topic, "one", "-p", "0")
    with ClusterClient(make_connection(bootstrap, 10.0, None, ())) as client:
        facts = GroupQueries(client)
        partition_ids = [(topic, 0), (topic, 9), ("no-such-topic", 0)]
        views = collect_partition_views(client, facts, partition_ids, 0)
    assert set(views) == {(topic, 0)}
    view = views[topic, 0]
    assert (view.log_start_offset, view.high_watermark, view.log_end_offset) == (0, 1, 1)
    assert (view.in_sync, view.min_in_sync, view.transaction) == (view.replicas, 1, None)
