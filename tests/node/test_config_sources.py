"""Settings from files, environment and command line, with their origins."""

from pathlib import Path

import pytest

from odradek.node.config_sources import (
    ConfigurationError,
    Setting,
    chains,
    environment_name,
    from_environment,
    from_file,
    merge,
)


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_toml_tables_and_dotted_keys_are_the_same(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "node.toml",
        'workers = 2\nlisteners = ["A://:1", "B://:2"]\nlog.level = "INFO"\n'
        "[auto.create]\ntopics.enable = true\n",
    )
    texts = {key: setting.text for key, setting in from_file(path).items()}
    assert texts == {
        "workers": "2",
        "listeners": "A://:1,B://:2",
        "log.level": "INFO",
        "auto.create.topics.enable": "true",
    }


def test_properties_are_read_as_kafka_reads_them(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "server.properties",
        "# a comment\n! another\n\n node.id = 3 \nlisteners=A://:1,\\\n  B://:2\nlog.dir: /d=e\n",
    )
    assert from_file(path) == {
        "node.id": Setting("3", f"{path} line 4"),
        "listeners": Setting("A://:1,B://:2", f"{path} line 6"),
        "log.dir": Setting("/d=e", f"{path} line 7"),
    }


def test_the_environment_spells_dots_as_underscores() -> None:
    settings = from_environment({"ODRADEK_LOG_RETENTION_MS": "1", "HOME": "/root"})
    assert settings == {
        "log.retention.ms": Setting("1", "environment variable ODRADEK_LOG_RETENTION_MS")
    }


@pytest.mark.parametrize(
    "key", ["log.retention.ms", "listener.name.sasl_plaintext.ssl.key.password", "a-b.c_d"]
)
def test_the_environment_can_name_every_key(key: str) -> None:
    assert list(from_environment({environment_name(key): "1"})) == [key]


def test_variables_are_spelled_as_in_kafkas_container_image() -> None:
    assert environment_name("a-b.c_d") == "ODRADEK_A___B_C__D"


def test_synonyms_are_one_setting() -> None:
    merged = merge({"broker.id": Setting("1", "a")}, {"node.id": Setting("2", "b")})
    assert merged == {"node.id": Setting("2", "b")}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("node.toml", b"workers = = 2", "is not TOML"),
        ("server.properties", b"node.id", r"line 1: 'node.id' is not of the form key=value"),
        ("server.properties", b"node.id=\xff", "is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=says):
        from_file(tmp_path / name)
    with pytest.raises(ConfigurationError, match="cannot read"):
        from_file(tmp_path / "missing.toml")


def test_the_line_of_a_setting_is_known_in_either_format(tmp_path: Path) -> None:
    toml = written(
        tmp_path,
        "node.toml",
        '# a comment\nworkers = 2\n\nlog.level = "INFO"\n[auto.create]\n"topics" . enable = true\n'
        '[a]\nlist = [\n  "x",\n]\ninline = {b = 1}\n',
    )
    assert {key: setting.origin for key, setting in from_file(toml).items()} == {
        "workers": f"{toml} line 2",
        "log.level": f"{toml} line 4",
        "auto.create.topics.enable": f"{toml} line 6",
        "a.list": f"{toml} line 8",
        "a.inline.b": str(toml),
    }
    properties = written(tmp_path, "node.properties", "#\na=1\nb=2\n")
    assert from_file(properties)["b"].origin == f"{properties} line 3"


def test_all_values_of_a_key_are_known_the_strongest_first() -> None:
    weak = {"log.dir": Setting("/a", "file"), "x": Setting("1", "file")}
    strong = {"data": Setting("/b", "variable")}
    assert chains(weak, strong) == {
        "data": (Setting("/b", "variable"), Setting("/a", "file")),
        "x": (Setting("1", "file"),),
    }
