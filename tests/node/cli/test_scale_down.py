"""`odradek cluster scale-down`: when there is nothing to do, and what is refused.

tests/e2e/test_rebalance.py takes a node out of a cluster of four with it, under load.
"""

import pytest

from tests.node.cli.conftest import Run
from tests.support.ports import free_port


@pytest.mark.e2e
def test_nothing_changes_without_nodes_that_are_to_go(kafka: Run) -> None:
    ran = kafka("cluster", "scale-down", "1", "--yes", "-o", "json")
    assert ran.json() == {"nodes": [], "lost_votes": [], "unregistered": [], "to_stop": []}
    assert kafka("cluster", "scale-down", "1").stdout == "No node has an id of 1 or more.\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("0",), "0 is not in the range"),
        ((), "Missing argument 'NODES'"),
        (("1", "--cancel"), "odradek node drain NODE_ID --cancel"),
    ],
)
def test_wrong_usage_is_refused(odradek: Run, arguments: tuple[str, ...], says: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    ran = odradek("cluster", "scale-down", *arguments, "-b", address)
    assert ran.exit_code == 2
    assert says in ran.stderr
