"""`odradek format`: an identity for a folder, and with --hardened all that makes a node safe."""

import shutil
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from odradek.node.cli.main import cli
from odradek.node.hardened_node import FILES
from tests.node.cli.conftest import Run


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # The fixture `odradek` takes ODRADEK_ variables away.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "odradek" / "profiles"


def test_format_gives_a_folder_an_identity_and_only_once(tmp_path: Path, odradek: Run) -> None:
    arguments = ("format", "--data", str(tmp_path / "data"), "--node-id", "3", "--stores", "2")
    first = odradek(*arguments, "-o", "json").json()
    assert isinstance(first, dict)
    assert (first["node_id"], first["stores"], first["formatted"]) == (3, 2, True)
    again = odradek(*arguments)
    assert again.exit_code == 1
    assert "already" in again.stderr
    accepted = odradek(*arguments, "--if-not-formatted", "-o", "json").json()
    assert isinstance(accepted, dict)
    assert accepted["formatted"] is False
    assert accepted["cluster_id"] == first["cluster_id"]


def test_format_prepares_further_log_directories(tmp_path: Path, odradek: Run) -> None:
    second = tmp_path / "second"
    assert odradek("format", "--data", str(tmp_path / "data")).exit_code == 0
    arguments = ("format", "--data", str(tmp_path / "data"), "--set", f"log.dirs={second}")

    def formatted(*more: str) -> bool:
        told = odradek(*arguments, *more, "-o", "json").json()
        assert isinstance(told, dict)
        assert told["log_dirs"] == f"{tmp_path / 'data'},{second}"
        return bool(told["formatted"])

    assert formatted()
    assert odradek(*arguments).exit_code == 1
    # A volume that is not mounted is not taken for a new one, unless somebody says so.
    shutil.rmtree(second)
    assert not formatted("--if-not-formatted")
    assert not second.exists()
    assert formatted()
    assert (second / "meta.properties").exists()


def test_variables_of_the_client_side_are_no_settings_of_a_node(tmp_path: Path) -> None:
    variables = {"ODRADEK_PROFILES": "/profiles", "ODRADEK_CLUSTER_PROFILE": "prod"}
    ran = CliRunner().invoke(cli, ["format", "--data", str(tmp_path / "data")], env=variables)
    assert ran.exit_code == 0, ran.output


def test_a_hardened_node_is_written_once_and_its_password_is_shown_once(
    tmp_path: Path, odradek: Run, profiles: Path
) -> None:
    folder = tmp_path / "node"
    arguments = ("format", "--hardened", "--into", str(folder), "--add-profile", "prod")
    ran = odradek(*arguments, "-o", "json")
    told = ran.json()
    assert isinstance(told, dict)
    password = told["admin_password"]
    assert len(password) == 32
    assert (told["profile"], told["admin"], told["formatted"]) == ("prod", "admin", True)
    assert f"sasl.password={password}" in (profiles / "prod.properties").read_text()
    assert f"sasl.password={password}" in (folder / "admin.properties").read_text()
    before = {name: (folder / name).read_bytes() for name in FILES}

    refused = odradek(*arguments)
    assert refused.exit_code == 1
    assert "there is a profile prod" in refused.stderr
    refused = odradek("format", "--hardened", "--into", str(folder))
    assert refused.exit_code == 1
    assert "node 0 of cluster" in refused.stderr
    accepted = odradek("format", "--hardened", "--into", str(folder), "--if-not-formatted")
    assert accepted.exit_code == 0
    assert password not in accepted.stdout + accepted.stderr
    assert {name: (folder / name).read_bytes() for name in FILES} == before


def test_a_password_of_a_file_is_not_shown(tmp_path: Path, odradek: Run) -> None:
    ran = odradek(
        *("format", "--hardened", "--into", str(tmp_path / "node"), "--admin", "root"),
        *("--admin-password-file", "-"),
        stdin="correct horse\n",
    )
    assert ran.exit_code == 0, ran.stderr
    assert "correct horse" not in ran.stdout + ran.stderr
    written = tmp_path / "node" / "admin.properties"
    assert "sasl.password=correct horse" in written.read_text()
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert "User:root" in (tmp_path / "node" / "node.toml").read_text()


def test_the_other_nodes_of_a_cluster_come_from_the_bundle(tmp_path: Path, odradek: Run) -> None:
    peers = "0@127.0.0.1:19192,1@127.0.0.1:19292,2@127.0.0.1:19392"
    first, second = tmp_path / "a", tmp_path / "b"
    hardened = ("format", "--hardened", "--into")
    made = odradek(
        *(*hardened, str(first), "--advertise", "a.example:9093", "--set", f"peers={peers}"),
        *("--stores", "4", "-o", "json"),
    ).json()
    bundle = first / "cluster.bundle"
    joined = odradek(
        *(*hardened, str(second), "--advertise", "b.example:9093", "--from", str(bundle)),
        *("--node-id", "1", "-o", "json"),
    ).json()
    assert isinstance(made, dict)
    assert isinstance(joined, dict)
    assert (joined["cluster_id"], joined["stores"]) == (made["cluster_id"], 4)
    assert joined["certificate_names"].startswith("b.example, ")
    assert "admin_password" not in joined
    assert sorted(each.name for each in second.iterdir()) == [
        *("authority.pem", "broker.pem", "cluster.secret", "data", "node.toml")
    ]
    wrong = odradek(*hardened, str(tmp_path / "c"), "--from", str(bundle), "--admin", "me")
    assert wrong.exit_code == 2
    bundle.chmod(0o640)
    refused = odradek(*hardened, str(tmp_path / "c"), "--from", str(bundle), "--node-id", "2")
    assert refused.exit_code == 1
    assert "others can read this file" in refused.stderr
    assert not (tmp_path / "c").exists()


def test_a_second_node_is_not_a_second_cluster(tmp_path: Path, odradek: Run) -> None:
    hardened = ("format", "--hardened", "--into")
    assert odradek(*hardened, str(tmp_path / "a")).exit_code == 0
    second = (*hardened, str(tmp_path / "b"), "--from", str(tmp_path / "a" / "cluster.bundle"))
    ran = odradek(*second)
    assert (ran.exit_code, "--from needs --node-id" in ran.stderr) == (2, True)
    ran = odradek(*second, "--node-id", "1")
    assert (ran.exit_code, "so this one joins it" in ran.stderr) == (2, True)
    assert not (tmp_path / "b").exists()
    joins = ("--set", "join=127.0.0.1:19192", "--set", "peer.listen=127.0.0.1:19292")
    ran = odradek(*second, "--node-id", "1", *joins)
    assert ran.exit_code == 0, ran.stderr
    assert 'join = "127.0.0.1:19192"' in (tmp_path / "b" / "node.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--hardened",), "needs --into"),
        (("--into", "{}"), "need --hardened"),
        (("--hardened", "--into", "{}", "--add-scram", "x"), "excludes --config"),
        (("--hardened", "--into", "{}", "--advertise", ":9092"), "a host and a port"),
        (("--hardened", "--into", "{}", "--advertise", "a"), "must be host:port"),
        (("--hardened", "--into", "{}", "--listen", "a:b"), "must be host:port"),
    ],
)
def test_wrong_usage_writes_nothing(
    tmp_path: Path, odradek: Run, arguments: tuple[str, ...], says: str
) -> None:
    folder = tmp_path / "node"
    ran = odradek("format", *(each.format(folder) for each in arguments))
    assert ran.exit_code == 2
    assert says in ran.stderr
    assert not folder.exists()
