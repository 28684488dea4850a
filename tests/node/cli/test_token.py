"""`odradek token`: what is asked of the command before a cluster is.

Against a cluster it is tested in tests/e2e/test_delegation_tokens.py.
"""

from pathlib import Path

import pytest

from tests.node.cli.conftest import Run

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    "arguments",
    [
        ("renew",),
        ("expire", "--hmac-file", "a", "--hmac-env", "B"),
        ("renew", "a-token", "--hmac-file", "a"),
        ("list", "--owner", "User:"),
        ("create", "--renewer", ":bob"),
        ("create", "--max-lifetime", "12"),
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_usage_errors(odradek: Run, arguments: tuple[str, ...]) -> None:
    assert odradek("token", *arguments, bootstrap=NOBODY).exit_code == 2


def test_a_file_that_exists_is_not_overwritten(odradek: Run, tmp_path: Path) -> None:
    file = tmp_path / "hmac"
    file.write_text("another token's")
    ran = odradek("token", "create", "--hmac-file", str(file), bootstrap=NOBODY)
    assert ran.exit_code == 1
    assert "cannot create" in ran.stderr
    assert file.read_text() == "another token's"


def test_no_file_is_left_without_a_token(odradek: Run, tmp_path: Path) -> None:
    file = tmp_path / "hmac"
    ran = odradek("token", "create", "--hmac-file", str(file), bootstrap=NOBODY)
    assert ran.exit_code == 1
    assert "cannot reach the cluster" in ran.stderr
    assert not file.exists()


@pytest.mark.parametrize("secret", ["se$cret", "säcret", "secre"])
def test_an_hmac_has_to_be_base64(odradek: Run, secret: str) -> None:
    ran = odradek("token", "renew", "--hmac-file", "-", stdin=f"{secret}\n", bootstrap=NOBODY)
    assert ran.exit_code == 1
    assert "not base64" in ran.stderr
    assert secret not in ran.stderr
