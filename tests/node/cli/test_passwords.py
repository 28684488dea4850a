"""Where passwords come from, and that they come from no argument."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest

from odradek.node.cli.passwords import read_password, read_secret
from tests.support.waiting import is_readable


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


def test_an_error_names_the_options_of_the_secret() -> None:
    with pytest.raises(click.UsageError, match=r"the HMAC\. Give --hmac-file or --hmac-env"):
        read_secret("HMAC", None, None, name="hmac", is_new=False)


def test_a_terminal_is_asked_and_does_not_show_the_answer() -> None:
    here, there = pty.openpty()
    command = (sys.executable, "-P", "-m", "odradek", "-b", "127.0.0.1:1", "token", "renew")
    asking = subprocess.Popen(
        command, stdin=there, stdout=there, stderr=there, start_new_session=True
    )
    os.close(there)
    try:
        shown = read_terminal(here, until="HMAC: ")
        os.write(here, b"se$cret\n")
        shown += read_terminal(here, until="not base64")
        assert "se$cret" not in shown
        assert asking.wait(30) == 1
    finally:
        asking.kill()
        os.close(here)


def read_terminal(descriptor: int, until: str) -> str:
    shown = ""
    while until not in shown:
        assert is_readable(descriptor, 30), shown
        shown += os.read(descriptor, 1000).decode()
    return shown
