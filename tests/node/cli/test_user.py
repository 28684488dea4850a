"""`odradek user` against a cluster, ours or Kafka's."""

from uuid import uuid4

import pytest

from tests.node.cli.conftest import Run

pytestmark = pytest.mark.e2e


def test_a_user_is_added_listed_and_removed(kafka: Run) -> None:
    name = f"user-{uuid4().hex[:8]}"
    added = kafka("user", "add", name, "--password-file", "-", stdin="geheim\n")
    assert added.exit_code == 0, added.stderr
    assert "geheim" not in added.stdout + added.stderr
    rows = [
        {"user": name, "mechanism": "SCRAM-SHA-256", "iterations": 4096},
        {"user": name, "mechanism": "SCRAM-SHA-512", "iterations": 4096},
    ]
    assert kafka("user", "list", name, "-o", "json").json() == rows
    changed = kafka(
        *("user", "add", name, "--mechanism", "scram-sha-512", "--iterations", "8192"),
        *("--password-file", "-"),
        stdin="other\n",
    )
    assert changed.exit_code == 0, changed.stderr
    removed = kafka("user", "remove", name, "--mechanism", "SCRAM-SHA-256")
    assert removed.exit_code == 0, removed.stderr
    listed = kafka("user", "list", "-o", "json").json()
    assert isinstance(listed, list)
    assert [row for row in listed if row["user"] == name] == [{**rows[1], "iterations": 8192}]
    assert kafka("user", "remove", name).exit_code == 0
    gone = kafka("user", "remove", name)
    assert gone.exit_code == 1
    assert "has no SCRAM credential" in gone.stderr


def test_a_password_is_needed_and_the_mechanism_is_known(kafka: Run) -> None:
    assert kafka("user", "add", "somebody").exit_code == 2
    assert kafka("user", "add", "somebody", "--mechanism", "PLAIN").exit_code == 2
    assert kafka("user", "add", "somebody", "--password-file", "/absent").exit_code == 1
