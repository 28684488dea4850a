"""`odradek broker` against a cluster."""

import pytest

from tests.node.cli.conftest import Run


@pytest.mark.e2e
def test_brokers_are_listed_with_address_and_controller(kafka: Run, bootstrap: str) -> None:
    rows = kafka("broker", "list", "-o", "json").json()
    assert isinstance(rows, list)
    assert [f"{row['host']}:{row['port']}" for row in rows] == [bootstrap]
    assert [row["controller"] for row in rows] == [True]
    assert rows[0]["cluster_id"]
