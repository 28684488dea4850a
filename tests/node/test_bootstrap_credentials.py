"""The users with which a cluster begins: the argument, and the file between format and start."""

import stat
from pathlib import Path

import pytest

from odradek.cluster.metadata.scram import ScramMechanism, credential_of, salted_password
from odradek.node.bootstrap_credentials import (
    FILE_NAME,
    ScramUserArgument,
    credential_record,
    parse_add_scram,
    read_bootstrap_credentials,
    write_bootstrap_credentials,
)
from odradek.node.config_sources import ConfigurationError


def test_the_argument_is_that_of_kafka_but_for_the_secret() -> None:
    assert parse_add_scram("SCRAM-SHA-512=[name=admin,password-file=/run/secret]") == (
        ScramUserArgument(ScramMechanism.SCRAM_SHA_512, "admin", 4096, "/run/secret", None)
    )
    assert parse_add_scram('scram-sha-256=[name="a", iterations=8192, password-env=P]') == (
        ScramUserArgument(ScramMechanism.SCRAM_SHA_256, "a", 8192, None, "P")
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SCRAM-SHA-512",
        "SCRAM-SHA-512=name=admin,password-file=geheim",
        "PLAIN=[name=admin,password-file=geheim]",
        "SCRAM-SHA-512=[name=admin]",
        "SCRAM-SHA-512=[password-file=geheim]",
        "SCRAM-SHA-512=[name=admin,password=geheim]",
        "SCRAM-SHA-512=[name=admin,saltedpassword=geheim]",
        "SCRAM-SHA-512=[name=admin,password-file=geheim,password-env=P]",
        "SCRAM-SHA-512=[name=admin,password-file=geheim,iterations=1]",
        "SCRAM-SHA-512=[name=admin,password-file=geheim,iterations=many]",
        "SCRAM-SHA-512=[name=admin,password-file=geheim,other=1]",
    ],
)
def test_other_arguments_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"SCRAM|password|iterations") as raised:
        parse_add_scram(text)
    assert "geheim" not in str(raised.value)


def test_the_file_has_keys_that_prove_the_password(tmp_path: Path) -> None:
    argument = ScramUserArgument(ScramMechanism.SCRAM_SHA_256, "admin", 4096, None, "P")
    record = credential_record(argument, "geheim")
    assert credential_record(argument, "geheim") != record, "the salt is a new one each time"
    write_bootstrap_credentials(tmp_path, [record])
    file = tmp_path / FILE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert b"geheim" not in file.read_bytes()
    assert read_bootstrap_credentials(tmp_path) == (record,)
    salt = record.credential.salt
    salted = salted_password(argument.mechanism, "geheim", salt, 4096)
    assert record.credential == credential_of(argument.mechanism, salted, salt, 4096)


def test_a_folder_without_the_file_and_a_damaged_one(tmp_path: Path) -> None:
    assert read_bootstrap_credentials(tmp_path) == ()
    (tmp_path / FILE_NAME).write_bytes(b"\xc1")
    with pytest.raises(ConfigurationError, match="Format the node again"):
        read_bootstrap_credentials(tmp_path)
