"""`odradek cluster scale-up`: a node that does not come, and what is refused.

tests/e2e/test_rebalance.py gives nodes replicas with it, under load.
"""

import pytest

from tests.node.cli.conftest import Run
from tests.support.ports import free_port


@pytest.mark.e2e
def test_nothing_is_moved_while_a_node_is_missing(kafka: Run) -> None:
    ran = kafka("cluster", "scale-up", "3", "--yes", "--timeout", "1")
    assert ran.exit_code == 1
    assert "Waiting until node 1, 2 serves." in ran.stderr
    assert "node 1, 2 does not serve: start it" in ran.stderr
    assert "Nothing to move." in kafka("cluster", "scale-up", "1", "--yes").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("0",), "0 is not in the range"),
        ((), "Missing argument 'NODES'"),
        (("1", "--cancel"), "odradek cluster rebalance --cancel"),
    ],
)
def test_wrong_usage_is_refused(odradek: Run, arguments: tuple[str, ...], says: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    ran = odradek("cluster", "scale-up", *arguments, "-b", address)
    assert ran.exit_code == 2
    assert says in ran.stderr
