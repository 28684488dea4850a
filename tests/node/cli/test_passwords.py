"""Where passwords come from, and that they come from no argument."""

from pathlib import Path

import click
import pytest

from odradek.node.cli.passwords import read_password


def test_a_file_has_it_in_its_first_line(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("geheim mit Leerzeichen\nsomething else\n")
    assert read_password("password", str(file), None) == "geheim mit Leerzeichen"


def test_a_variable_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_PASSWORD", "geheim")
    assert read_password("password", None, "ADMIN_PASSWORD") == "geheim"


def test_what_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff")
    for file in ("absent", "empty", "binary"):
        with pytest.raises(click.ClickException):
            read_password("password", str(tmp_path / file), None)
    monkeypatch.delenv("ABSENT", raising=False)
    with pytest.raises(click.ClickException):
        read_password("password", None, "ABSENT")
    with pytest.raises(click.UsageError):
        read_password("password", "file", "VARIABLE")


def test_without_a_terminal_nobody_is_asked() -> None:
    with pytest.raises(click.UsageError, match="no terminal"):
        read_password("password", None, None)
