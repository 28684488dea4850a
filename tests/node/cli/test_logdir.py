"""`odradek logdir` against a broker with one log directory. tests/e2e has brokers with several."""

from uuid import uuid4

import pytest

from tests.node.cli.conftest import Run

pytestmark = pytest.mark.e2e


def test_directories_and_their_replicas_are_listed(kafka: Run) -> None:
    name = f"logdir-{uuid4().hex[:8]}"
    assert kafka("topic", "create", name, "-p", "2").exit_code == 0
    rows = kafka("logdir", "list", "--topic", name, "-o", "json").json()
    assert isinstance(rows, list)
    assert sum(row["replicas"] for row in rows) == 2
    assert {row["state"] for row in rows} == {"online"}
    assert all(row["free"] <= row["total"] for row in rows)
    replicas = kafka("logdir", "list", "--replicas", "--topic", f"{name}:1", "-o", "json").json()
    assert isinstance(replicas, list)
    assert [(row["topic"], row["partition"], row["is_future"]) for row in replicas] == [
        (name, 1, False)
    ]


def test_a_replica_stays_where_it_is_and_moves_nowhere_else(kafka: Run) -> None:
    name = f"logdir-{uuid4().hex[:8]}"
    assert kafka("topic", "create", name).exit_code == 0
    rows = kafka("logdir", "list", "--replicas", "--topic", name, "-o", "json").json()
    assert isinstance(rows, list)
    (held,) = rows
    node, path = str(held["node"]), held["directory"]
    stays = kafka("logdir", "move", name, "--node", node, "--to", path, "-o", "json")
    assert stays.json() == {"node": held["node"], "directory": path, "replicas": 1, "done": True}
    unknown = kafka("logdir", "move", name, "--node", node, "--to", "/nowhere")
    assert unknown.exit_code == 1
    assert f"/nowhere is no log directory of node {node}. It has {path}" in unknown.stderr
    missing = kafka("logdir", "move", f"{name}:7", "--node", node, "--to", path)
    assert (missing.exit_code, f"{name}-7" in missing.stderr) == (1, True)
    assert kafka("logdir", "move", name, "--node", "77", "--to", path).exit_code == 1
    assert kafka("logdir", "move", name, "--to", path).exit_code == 2
