"""`odradek cluster new-secret`."""

import os
from pathlib import Path

from click.testing import CliRunner

from odradek.node.cli.cluster_secret import new_secret
from odradek.node.peer_config import read_secrets
from tests.node.cli.conftest import Run


def test_a_secret_is_written_once(odradek: Run, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    ran = odradek("cluster", "new-secret", str(file))
    assert (ran.exit_code, ran.stdout) == (0, f"Wrote {file}.\n")
    (secret,) = read_secrets(str(file))
    assert len(secret) >= 32
    assert secret not in ran.stdout
    assert file.stat().st_mode & 0o777 == 0o600
    again = odradek("cluster", "new-secret", str(file))
    assert again.exit_code == 1
    assert "exists already" in again.stderr
    kept = odradek("cluster", "new-secret", "--if-missing", str(file))
    assert (kept.exit_code, kept.stdout) == (0, f"{file} exists already.\n")
    assert read_secrets(str(file)) == (secret,)
    assert list(tmp_path.iterdir()) == [file]


def test_two_secrets_differ(odradek: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert odradek("cluster", "new-secret", str(tmp_path / name)).exit_code == 0
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()


def test_a_folder_that_is_missing(odradek: Run, tmp_path: Path) -> None:
    ran = odradek("cluster", "new-secret", str(tmp_path / "missing" / "secret"))
    assert ran.exit_code == 1
    assert "No such file or directory" in ran.stderr


def test_what_a_run_left_that_was_killed_is_no_secret(tmp_path: Path) -> None:
    """In a container the next one has the same process id."""
    path = tmp_path / "secret"
    left = [tmp_path / f"secret.{name}.new" for name in (os.getpid(), 1)]
    for each in left:
        each.write_text("half")
    ran = CliRunner().invoke(new_secret, [str(path), "--if-missing"])
    assert ran.exit_code == 0, ran.output
    assert len(path.read_text().strip()) >= 40
