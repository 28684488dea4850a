"""`odradek acl`: what its options mean. What it does with a cluster is in
tests/e2e/test_access_control.py."""

import pytest

from tests.node.cli.conftest import Run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "--topic", "t", "--operation", "read"), "--principal"),
        (("add", "--principal", "a", "--topic", "t"), "--operation"),
        (("add", "--principal", "a", "--operation", "read"), "Name the resources"),
        (("add", "--principal", "a", "--group", "g", "--producer"), "Name the resources"),
        (
            ("add", "--principal", "a", "--topic", "t", "--producer", "--operation", "read"),
            "name the operations themselves",
        ),
        (("add", "--principal", "a", "--topic", "t", "--operation", "fly"), "fly"),
        (("add", "--principal", "a", "--topic", "t", "--pattern", "match"), "match"),
        (("remove",), "--all"),
        (("list", "--pattern", "fuzzy"), "fuzzy"),
    ],
)
@pytest.mark.e2e
def test_what_cannot_be_meant_is_wrong_usage(
    kafka: Run, arguments: tuple[str, ...], said: str
) -> None:
    ran = kafka("acl", *arguments)
    assert ran.exit_code == 2
    assert said in ran.stderr


@pytest.mark.e2e
def test_a_cluster_without_an_authorizer_says_so(kafka: Run) -> None:
    for arguments in (
        ("list",),
        ("add", "--principal", "a", "--topic", "t", "--operation", "read"),
        ("remove", "--all", "--yes"),
    ):
        ran = kafka("acl", *arguments)
        assert ran.exit_code == 1
        assert "SECURITY_DISABLED" in ran.stderr
