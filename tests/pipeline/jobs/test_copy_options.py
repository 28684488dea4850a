"""Options of replay and mirror."""

import os

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.copy_options import (
    CONFIGS_KEPT,
    ClusterAccess,
    mirror_options,
    replay_options,
)

REPLAY = {"table": "lake/orders", "to": "again"}
MIRROR = {
    "name": "west",
    "source.bootstrap.servers": "a:1",
    "target.bootstrap.servers": "b:2",
    "topics": "orders, bills,orders",
}


def test_replay_has_defaults() -> None:
    options = replay_options(REPLAY, append=False)
    assert options.table == os.path.abspath("lake/orders")
    assert (options.name, options.topic, options.append) == ("replay.again", "", False)
    assert (options.replication_factor, options.rows_per_transaction) == (-1, 100_000)
    assert options.bootstrap_servers == "127.0.0.1:9092"


def test_replay_takes_options_of_clients_and_tables() -> None:
    given = {
        "table": "s3://lake/orders",
        "kafka.security.protocol": "SSL",
        "catalog.uri": "sqlite:///x",
        "storage.region": "y",
        "replication.factor": "3",
        "rows.per.transaction": "2k",
    }
    options = replay_options(REPLAY | given, append=True)
    assert options.table == "s3://lake/orders"
    assert options.kafka == {"security.protocol": "SSL"}
    assert options.table_options == {"catalog.uri": "sqlite:///x", "storage.region": "y"}
    assert (options.replication_factor, options.rows_per_transaction) == (3, 2_000)
    assert options.append


def test_mirror_has_two_clusters() -> None:
    given = {"source.kafka.security.protocol": "SSL", "target.kafka.client.id": "c"}
    options = mirror_options(MIRROR | given, append=False)
    assert options.source == ClusterAccess(
        bootstrap_servers="a:1", kafka={"security.protocol": "SSL"}
    )
    assert options.target == ClusterAccess(bootstrap_servers="b:2", kafka={"client.id": "c"})
    assert options.topics == ("orders", "bills")
    assert (options.prefix, options.group_pattern) == ("", ".*")
    assert options.topic_configs == tuple(CONFIGS_KEPT.split(","))
    assert options.fail_on_data_loss


def test_mirror_takes_a_pattern_instead_of_topics() -> None:
    given = {name: value for name, value in MIRROR.items() if name != "topics"}
    more = {"topics.pattern": "a.*", "fail.on.data.loss": "false", "topic.configs": "retention.ms"}
    options = mirror_options(given | more, append=False)
    assert (options.topics, options.topic_pattern) == ((), "a.*")
    assert not options.fail_on_data_loss
    assert options.topic_configs == ("retention.ms",)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": ""}, "name is not set: say it in the file, or with --name"),
        ({"target.bootstrap.servers": ""}, "or with --target-bootstrap-servers"),
        ({"name": "a b"}, "letters, digits"),
        ({"topics.pattern": "x"}, "either topics or topics.pattern"),
        ({"topics": ""}, "either topics or topics.pattern"),
        ({"topics": "", "topics.pattern": "("}, "topics.pattern is no regular expression"),
        ({"groups.pattern": "("}, "groups.pattern is no regular expression"),
        ({"fail.on.data.loss": "no"}, "take one of true, false"),
        ({"replication.factor": "0"}, "replication.factor is '0'"),
        ({"rows.per.transaction": "x"}, "rows.per.transaction is 'x'"),
        ({"kafka.client.id": "x"}, "kafka.client.id is no setting"),
        ({"topic": "x"}, "did you mean topics?"),
    ],
)
def test_what_is_wrong_with_a_mirror_is_told(given: dict[str, str], problem: str) -> None:
    with pytest.raises(PipelineError) as raised:
        mirror_options(MIRROR | given, append=False)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"table": ""}, "table is not set"),
        ({"to": ""}, "to is not set"),
        ({"name": "a/b"}, "letters, digits"),
        ({"topics": "x"}, "did you mean topic?"),
    ],
)
def test_what_is_wrong_with_a_replay_is_told(given: dict[str, str], problem: str) -> None:
    with pytest.raises(PipelineError) as raised:
        replay_options(REPLAY | given, append=False)
    assert problem in str(raised.value)
