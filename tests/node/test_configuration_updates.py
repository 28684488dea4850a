"""What a changed file and clients change in the configuration of a running node."""

import socket
from pathlib import Path
from typing import cast

import msgspec
import pytest

from odradek.cluster.metadata.node_settings import RESTART_REASONS
from odradek.node.child import Child, ChildPlan
from odradek.node.config import NodeConfig, load
from odradek.node.config_sources import ConfigurationError
from odradek.node.config_watch import ConfigFileWatch
from odradek.node.configuration_rollout import ConfigurationRollout
from odradek.node.configuration_updates import (
    FIXED_FIELDS,
    RESTART_FIELDS,
    START_FIELDS,
    ConfigurationUpdates,
    replaced_kinds,
    updated_config,
)
from odradek.node.data_folder import MetaProperties, format_folder
from odradek.node.metrics.registry import Metrics
from odradek.node.observability import ChangeLogLevels
from odradek.node.process_replacement import ProcessReplacement
from tests.support.ports import free_pair

LISTENERS = "PLAINTEXT://127.0.0.1:0"


def loaded(**options: str) -> NodeConfig:
    options = {"data": "/data", "listeners": LISTENERS} | {
        key.replace("_", "."): value for key, value in options.items()
    }
    return load(environment={}, options=options)


def test_what_a_running_node_can_change_is_changed() -> None:
    before = loaded(workers="1")
    running = msgspec.structs.replace(
        before,
        listeners=tuple(msgspec.structs.replace(each, port=40_000) for each in before.listeners),
        cluster_id="found",
        log_levels={"root": "DEBUG"},
    )
    after = loaded(
        workers="3",
        num_partitions="4",
        broker_rack="b",
        log_level="ERROR",
        log_format="json",
        http_listen="127.0.0.1:1",
        controlled_shutdown_timeout_ms="7",
        advertised_listeners="PLAINTEXT://there:9",
    )
    config, restart = updated_config(running, before, after)
    assert restart == []
    assert (config.cluster_id, config.log_levels) == ("found", {"root": "DEBUG"})
    assert (config.worker_count, config.configured_worker_count) == (1, 3)
    assert (config.log_level, config.log_format) == ("ERROR", "json")
    assert (config.http_host, config.http_port) == ("127.0.0.1", 1)
    assert config.controlled_shutdown_ms == 7
    assert config.broker_configs["num.partitions"] == "4"
    assert config.broker_configs["broker.rack"] == "b"
    (listener,) = config.listeners
    assert (listener.port, listener.advertised_host, listener.advertised_port) == (
        40_000,
        "there",
        9,
    )
    back, restart = updated_config(config, before, before)
    assert restart == []
    assert back.broker_configs["workers"] == "1"
    assert "num.partitions" not in back.broker_configs


def test_listeners_come_and_go_with_the_ports_that_are_bound() -> None:
    protocols = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT,MORE:PLAINTEXT"
    before = loaded(
        listeners="PLAINTEXT://127.0.0.1:0,OTHER://:1", listener_security_protocol_map=protocols
    )
    ports = {"PLAINTEXT": 40_000, "OTHER": 1}
    running = msgspec.structs.replace(
        before,
        listeners=tuple(
            msgspec.structs.replace(each, port=ports[each.name]) for each in before.listeners
        ),
    )
    after = loaded(
        listeners="MORE://:2,PLAINTEXT://127.0.0.1:0", listener_security_protocol_map=protocols
    )
    config, restart = updated_config(running, before, after)
    assert restart == []
    assert [(each.name, each.port) for each in config.listeners] == [
        ("MORE", 2),
        ("PLAINTEXT", 40_000),
    ]


def test_what_needs_a_restart_is_named_and_stays() -> None:
    before = loaded()
    after = loaded(
        data="/other",
        node_id="4",
        profile="dev",
        durability="commit",
        num_partitions="5",
    )
    config, restart = updated_config(before, before, after)
    assert restart == ["data", "node.id", "run"]
    assert config.arena_bytes == 256 << 20
    assert config.broker_configs["durability"] == "commit"
    assert config.broker_configs["group.initial.rebalance.delay.ms"] == "100"
    assert config.broker_configs["num.partitions"] == "5"
    assert config.data == "/data"
    assert updated_config(config, before, before)[1] == []


def test_the_cluster_secret_is_replaced_but_neither_added_nor_removed() -> None:
    old, new = "the secret of yesterday", "the secret of tomorrow"
    without, before = loaded(), loaded(cluster_secret=old)
    config, restart = updated_config(before, before, loaded(cluster_secret=f"{old}\n{new}"))
    assert (config.cluster_secrets, restart) == ((old, new), [])
    config, restart = updated_config(config, before, loaded(cluster_secret=new))
    assert (config.cluster_secrets, restart) == ((new,), [])
    config, restart = updated_config(config, before, without)
    assert (config.cluster_secrets, restart) == ((new,), ["cluster.secret"])
    config, restart = updated_config(without, without, before)
    assert (config.cluster_secrets, restart) == ((), ["cluster.secret"])


def test_every_field_is_of_one_kind() -> None:
    live = {
        "cluster_secrets",
        "controlled_shutdown_ms",
        "durability",
        "http_host",
        "http_port",
        "log_format",
        "log_level",
        "profile",
        "protocol_map",
        "secret_file",
        "sources",
        "static_configs",
        "worker_count",
        "listeners",
    }
    of_the_running_node = {
        "configured_worker_count",
        "directory_id",
        "file_problem",
        "log_levels",
        "overridden",
        "restart_keys",
        "settings_problem",
    }
    parts = (live, of_the_running_node, set(RESTART_FIELDS), set(START_FIELDS), set(FIXED_FIELDS))
    assert set(NodeConfig.__struct_fields__) == set[str]().union(*parts)
    assert len(NodeConfig.__struct_fields__) == sum(map(len, parts)), "each once"


def test_every_key_that_waits_for_a_restart_has_its_reason() -> None:
    assert {*RESTART_FIELDS.values(), "cluster.secret"} == RESTART_REASONS.keys()


def test_what_a_process_reads_at_its_start_only_is_named() -> None:
    own = {"peer_listen": "127.0.0.1:5000", "listeners": "PLAINTEXT://127.0.0.1:4999"}
    before = loaded(**own)

    def replaced(**options: str) -> set[str]:
        after = loaded(**own | options)
        config, restart = updated_config(before, before, after)
        assert restart == []
        return replaced_kinds(before, config)

    assert replaced(num_partitions="3", durability="commit", workers="3") == set()
    assert replaced(arena_bytes="300MiB") == {"router"}
    assert replaced(profile="dev") == {"router"}, "it has another default of arena.bytes"
    assert replaced(audit_log_path="/audit") == {"router"}
    assert replaced(processor_placement="shared") == {"router", "worker"}
    assert replaced(peer_listen="127.0.0.1:6000") == {"controller", "worker"}
    assert replaced(peer_advertised="127.0.0.1:6000") == {"controller"}


def _no_child(plan: ChildPlan) -> Child:
    raise AssertionError(plan)


class Node:
    """Stands in for the supervisor: keeps the configuration, refuses it when told to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "node.properties"
        self.path.write_text("num.partitions=1\n")
        self.config = self.load()
        self.watch = ConfigFileWatch(self.path, self.load, self.config)
        self.failure: Exception | None = None
        self.now = 0.0
        self.replacement = ProcessReplacement(
            list, make_child=_no_child, plan=lambda _: [], candidate_path=folder / "candidate.json"
        )
        self.updates = ConfigurationUpdates(
            ConfigurationRollout(list),
            self.replacement,
            self.watch,
            current=lambda: self.config,
            adopt=self.adopt,
        )

    def load(self) -> NodeConfig:
        return load(file=self.path, environment={}, options={"data": str(self.path.parent)})

    def adopt(self, config: NodeConfig) -> None:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.config = config

    def write(self, text: str) -> None:
        self.path.write_text(text)
        for _ in range(3):
            self.now += 1.0
            self.updates.tick(self.now)
            self.replacement.turn(self.now)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def values(node: Node) -> dict[str, float]:
    metrics = Metrics("supervisor")
    node.updates.register_metrics(metrics)
    lines = "".join(part.lines for part in metrics.collect()).splitlines()
    numbers = [line.rpartition(" ") for line in lines]
    return {series.replace('{process="supervisor"', "{"): float(n) for series, _, n in numbers}


def test_a_valid_file_is_adopted_and_a_bad_one_is_told(node: Node) -> None:
    node.write("num.partitions=22\nrun=/tmp/other-run\n")
    assert node.config.broker_configs["num.partitions"] == "22"
    assert node.updates.problem_text == "a restart is needed for run\n"
    node.write("num.partitions=333\nnum.partitons=4\n")
    assert node.config.broker_configs["num.partitions"] == "22"
    assert "is refused: Unknown broker config name: num.partitons" in node.updates.problem_text
    assert values(node) == {
        'odradek_config_file_changes_total{,result="applied"}': 1,
        'odradek_config_file_changes_total{,result="refused"}': 1,
        "odradek_config_file_refused{}": 1,
        "odradek_config_restart_pending{}": 1,
    }
    node.write("num.partitions=4444\n")
    assert node.config.broker_configs["num.partitions"] == "4444"
    assert node.updates.problem_text == ""


@pytest.mark.parametrize(
    "failure", [ConfigurationError("http.listen=a:1: in use"), OSError(28, "No space left")]
)
def test_a_file_that_cannot_be_adopted_is_refused(node: Node, failure: Exception) -> None:
    node.failure = failure
    node.write("num.partitions=22\n")
    assert node.config.broker_configs["num.partitions"] == "1"
    assert node.config.file_problem


class AskingRouter:
    """Stands in for the child that asks."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = []

    def answer_log_levels(self, request_id: int, problem: str = "") -> None:
        self.answers.append((request_id, problem))


def test_levels_are_kept_in_the_configuration(node: Node) -> None:
    router = AskingRouter()

    def ask(message: ChangeLogLevels) -> None:
        node.updates.change_log_levels(cast("Child", router), message)

    ask(ChangeLogLevels(1, {"root": "WARN", "odradek": "DEBUG"}))
    ask(ChangeLogLevels(2, {"odradek": None}))
    assert node.config.log_levels == {"root": "WARN"}
    node.failure = OSError(28, "No space left")
    ask(ChangeLogLevels(3, {"root": "ERROR"}))
    assert node.config.log_levels == {"root": "WARN"}
    assert router.answers == [
        (1, ""),
        (2, ""),
        (3, "The levels cannot be stored: No space left"),
    ]


def test_a_file_that_makes_the_data_anothers_is_refused(node: Node) -> None:
    folder = node.path.parent
    format_folder(folder, MetaProperties("mine", 0, 8))
    node.write("num.partitions=22\nstores=8\ncluster.id=mine\n")
    assert node.updates.problem_text == ""
    for key, reason in (
        ("node.id=4", f"the data in {folder} belong to node 0"),
        ("cluster.id=other", f"the data in {folder} belong to cluster mine"),
        ("stores=4", f"{folder} was formatted with 8 stores"),
        ("routers=2", "This release runs one router a node"),
    ):
        node.write(f"num.partitions=33\n{key}\n")
        assert reason in node.updates.problem_text, key
        assert node.config.broker_configs["num.partitions"] == "22"


def test_an_address_for_other_nodes_that_is_in_use_is_refused(node: Node) -> None:
    port = free_pair()
    # The port of the first worker is the one after it.
    with socket.create_server(("127.0.0.1", port + 1)):
        node.write(f"peer.listen=127.0.0.1:{port}\n")
        assert f"peer.listen=peers://127.0.0.1:{port + 1}: Addr" in node.updates.problem_text
    assert not node.config.is_clustered
    assert not node.replacement.is_active
