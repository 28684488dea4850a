"""`odradek profile`, and commands that use one."""

from pathlib import Path

import pytest

from tests.node.cli.conftest import Run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # The fixture `odradek` takes ODRADEK_ variables away.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "odradek" / "profiles"


SASL = ("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=SCRAM-SHA-512")


def test_profiles_are_added_listed_and_removed(odradek: Run, folder: Path) -> None:
    assert "There is no profile" in odradek("profile", "list").stderr
    added = odradek(
        *("profile", "add", "prod", "-b", "broker:9093", *SASL),
        *("-X", "sasl.username=alice", "--password-file", "-"),
        stdin="secret\n",
    )
    assert added.exit_code == 0, added.stderr
    assert str(folder / "prod.properties") in added.stdout
    listed = odradek("profile", "list", "-o", "json")
    assert listed.json() == [
        {
            "profile": "prod",
            "bootstrap": "broker:9093",
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "SCRAM-SHA-512",
            "user": "alice",
        }
    ]
    assert "secret" not in odradek("profile", "list").stdout
    assert "sasl.password=secret" in (folder / "prod.properties").read_text()
    assert odradek("profile", "remove", "prod").exit_code == 0
    assert "no such profile" in odradek("profile", "remove", "prod").stderr


def test_secrets_are_not_taken_from_the_command_line(odradek: Run, folder: Path) -> None:
    ran = odradek("profile", "add", "p", "-b", "b:1", *SASL, "-X", "sasl.password=secret")
    assert ran.exit_code == 2
    assert "history of the shell" in ran.stderr
    assert "secret" not in ran.stderr
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (("add", "p"), 2, "Name the brokers"),
        (("add", "p", "-b", "b:x"), 2, "is not HOST"),
        (("add", "a/b", "-b", "b:1"), 2, "letters, digits"),
        (("add", "p", "-b", "b:1", "-X", "security.protocol=TLS"), 1, "TLS is not one of"),
        (("add", "p", "-b", "b:1", "-X", "sasl.username=a"), 2, "--password-file"),
    ],
)
def test_a_profile_that_cannot_work_is_refused(
    odradek: Run, folder: Path, arguments: tuple[str, ...], exit_code: int, says: str
) -> None:
    ran = odradek("profile", *arguments)
    assert (ran.exit_code, says in ran.stderr) == (exit_code, True), ran.stderr
    assert not folder.exists()


def test_a_profile_is_replaced_only_when_asked(odradek: Run) -> None:
    assert odradek("profile", "add", "p", "-b", "a:1").exit_code == 0
    assert "--replace" in odradek("profile", "add", "p", "-b", "b:1").stderr
    assert odradek("profile", "add", "p", "-b", "b:1", "--replace").exit_code == 0
    assert "b:1" in odradek("profile", "list").stdout


def test_a_command_without_a_cluster_takes_no_profile(odradek: Run) -> None:
    ran = odradek("-p", "prod", "profile", "list")
    assert ran.exit_code == 2
    assert "connects to no cluster" in ran.stderr
    assert "no such profile" in odradek("-p", "prod", "topic", "list").stderr


@pytest.mark.e2e
def test_commands_use_the_profile_and_options_precede_it(odradek: Run, bootstrap: str) -> None:
    odradek("profile", "add", "here", "-b", bootstrap)
    odradek("profile", "add", "nowhere", "-b", "127.0.0.1:1", "-X", "client.id=of-the-profile")
    assert odradek("-p", "here", "topic", "list").exit_code == 0
    # More special than the environment.
    assert odradek("-p", "here", "topic", "list", bootstrap="127.0.0.1:1").exit_code == 0
    assert odradek("-p", "nowhere", "topic", "list", bootstrap=bootstrap).exit_code == 1
    assert odradek("-p", "nowhere", "-b", bootstrap, "topic", "list").exit_code == 0
    assert odradek("-p", "nowhere", "topic", "list", "-b", bootstrap).exit_code == 0
    ran = odradek("-p", "here", "topic", "list", "-X", "no.such.property=1")
    assert "no.such.property" in ran.stderr
