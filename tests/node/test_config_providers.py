"""`${provider:path:key}` in a node's configuration."""

from pathlib import Path

import pytest

from odradek.node.config import NodeConfig, load
from odradek.node.config_sources import ConfigurationError

CLASSES = "org.apache.kafka.common.config.provider."
PROVIDERS = f"""\
config.providers=env,file,dir
config.providers.env.class={CLASSES}EnvVarConfigProvider
config.providers.file.class={CLASSES}FileConfigProvider
config.providers.dir.class={CLASSES}DirectoryConfigProvider
"""


def read(folder: Path, text: str, **environment: str) -> NodeConfig:
    file = folder / "node.properties"
    file.write_text(text)
    return load(file=file, environment=environment)


def faults(folder: Path, text: str, **environment: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(folder, text, **environment)
    return str(caught.value)


def test_values_come_from_the_environment_from_files_and_from_directories(tmp_path: Path) -> None:
    (tmp_path / "rack.properties").write_text("broker.rack=zone-a\n")
    (tmp_path / "retention").write_text("3600000")
    config = read(
        tmp_path,
        PROVIDERS
        + "listeners=A://:9092,B://:9093\nlistener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT\n"
        "advertised.listeners=A://kafka:9092,B://[${env:HOST_IP}]:30096\n"
        f"broker.rack=${{file:{tmp_path}/rack.properties:broker.rack}}\n"
        f"log.retention.ms=${{dir:{tmp_path}:retention}}\n",
        HOST_IP="10.0.0.5",
    )
    assert config.listeners[1].advertised_host == "10.0.0.5"
    assert config.static_configs["broker.rack"] == "zone-a"
    assert config.static_configs["log.retention.ms"] == "3600000"
    assert config.settings_without_effect == []
    assert config.sources["advertised.listeners"][0][0].endswith("B://[${env:HOST_IP}]:30096")


def test_an_address_of_ipv6_fits_as_well(tmp_path: Path) -> None:
    text = PROVIDERS + "advertised.listeners=PLAINTEXT://[${env:HOST_IP}]:30096\n"
    assert read(tmp_path, text, HOST_IP="fd00::5").listeners[0].advertised_host == "fd00::5"


def test_what_names_no_provider_is_a_text(tmp_path: Path) -> None:
    assert read(tmp_path, "broker.rack=${env:RACK}").static_configs["broker.rack"] == "${env:RACK}"


def test_environment_variables_can_have_references(tmp_path: Path) -> None:
    config = read(tmp_path, PROVIDERS, ODRADEK_BROKER_RACK="${env:ZONE}", ZONE="b")
    assert config.static_configs["broker.rack"] == "b"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("broker.rack=${env:NOT_SET}", "there is no environment variable NOT_SET"),
        ("broker.rack=${env:/etc:HOME}", "an environment variable has no path"),
        ("broker.rack=${file:/not/there:a}", "cannot read /not/there"),
        ("broker.rack=${file:rack}", "it has no path"),
        ("broker.rack=${dir:/not/there:a}", "cannot read /not/there/a"),
        ("broker.rack=${dir:/etc:../shadow}", "is no name of a file"),
        ("config.providers.vault.class=a", "does not name this provider"),
        ("config.providers.env.param.a=b", "is no parameter"),
        ("config.providers.file.param.allowed.paths=etc", "etc is no absolute path"),
        ("config.providers.env.param.allowlist.pattern=(", "is no regular expression"),
    ],
)
def test_errors_say_what_is_missing(tmp_path: Path, line: str, reason: str) -> None:
    assert reason in faults(tmp_path, PROVIDERS + line)


def test_providers_are_limited_to_what_they_may_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("zone-a")
    limited = f"{PROVIDERS}config.providers.dir.param.allowed.paths={tmp_path}/public,/mnt\n"
    assert "allowed.paths" in faults(tmp_path, f"{limited}broker.rack=${{dir:{tmp_path}:secret}}")
    climbing = f"broker.rack=${{dir:{tmp_path}/public/..:secret}}"
    assert "has .." in faults(tmp_path, limited + climbing)
    pattern = "config.providers.env.param.allowlist.pattern=RACK_.*\n"
    assert "no environment variable HOME" in faults(
        tmp_path, f"{PROVIDERS}{pattern}broker.rack=${{env:HOME}}", HOME="/root"
    )
    allowed = read(tmp_path, f"{PROVIDERS}{pattern}broker.rack=${{env:RACK_A}}", RACK_A="a")
    assert allowed.static_configs["broker.rack"] == "a"


def test_classes_that_do_not_exist_here_are_refused(tmp_path: Path) -> None:
    said = faults(tmp_path, "config.providers=vault\nconfig.providers.vault.class=com.Vault\n")
    assert "com.Vault is none of" in said
    assert "vault.class is missing" in faults(tmp_path, "config.providers=vault\n")


def test_no_error_shows_what_was_looked_up(tmp_path: Path) -> None:
    text = (
        PROVIDERS + "ssl.key.password=${env:PASSWORD}\nnode.id=x\ncluster.secret=${env:PASSWORD}\n"
    )
    assert "hunter2" not in faults(tmp_path, text, PASSWORD="hunter2")
    (tmp_path / "login").write_text("password hunter2\n")
    said = faults(tmp_path, PROVIDERS + f"broker.rack=${{file:{tmp_path}/login:password}}\n")
    assert "hunter2" not in said
