"""`odradek doctor --security`: what is printed, and the exit code."""

import json
from pathlib import Path

import pytest

from tests.node.cli.conftest import Run
from tests.support.ports import free_port


@pytest.mark.e2e
def test_a_cluster_without_security_is_serious(odradek: Run, bootstrap: str) -> None:
    ran = odradek("doctor", "--security", bootstrap)
    assert ran.exit_code == 1
    assert f"serious: {bootstrap}: anybody who reaches it" in ran.stdout
    assert "may read or change" in ran.stdout
    assert "docs/security.md" in ran.stderr


@pytest.mark.e2e
def test_json_has_each_address_once_with_what_it_lets_strangers_do(
    odradek: Run, bootstrap: str
) -> None:
    ran = odradek("doctor", "--security", bootstrap, "-o", "json")
    assert ran.exit_code == 1
    assert ran.stderr == ""
    document = json.loads(ran.stdout)
    [address] = document["addresses"]
    assert (address["address"], address["protocol"]) == (bootstrap, "PLAINTEXT")
    [way_in] = address["ways_in"]
    assert way_in["entrance"] == "without credentials"
    assert "create topics" in way_in["may"]
    assert [each["severity"] for each in document["findings"]] == ["serious"]


def test_an_address_at_which_nobody_answers_is_not_called_safe(odradek: Run) -> None:
    ran = odradek("doctor", "--security", f"127.0.0.1:{free_port()}")
    assert ran.exit_code == 1
    assert "Connection refused; nothing is known of it" in ran.stderr
    assert "Nothing was found" not in ran.stderr


def test_the_settings_of_a_file_are_judged_too(odradek: Run, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('listeners = "PLAINTEXT://:9092"\n')
    nobody = f"127.0.0.1:{free_port()}"
    ran = odradek("doctor", "--security", nobody, "--config", str(file))
    assert ran.exit_code == 1
    assert f"serious: {file}: listener PLAINTEXT: neither encryption" in ran.stdout
    file.write_text('listeners = "nonsense"\n')
    ran = odradek("doctor", "--security", nobody, "--config", str(file))
    assert "wrong settings" in ran.stderr
    ran = odradek("doctor", nobody, "--config", str(file))
    assert ran.exit_code == 2
    assert "--config needs --security" in ran.stderr
