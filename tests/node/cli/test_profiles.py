"""The files of profiles: who can read them, and names that are none."""

from pathlib import Path

import click
import pytest

from odradek.node.cli.profiles import (
    profile_names,
    profiles_folder,
    read_profile,
    write_profile,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ODRADEK_PROFILES", str(tmp_path / "profiles"))
    return tmp_path / "profiles"


def test_the_folder_is_that_of_the_users_configurations() -> None:
    assert profiles_folder({"ODRADEK_PROFILES": "/x"}) == Path("/x")
    assert profiles_folder({"XDG_CONFIG_HOME": "/c"}) == Path("/c/odradek/profiles")
    assert profiles_folder({}) == Path.home() / ".config" / "odradek" / "profiles"


def test_a_profile_is_read_as_it_was_written_and_by_this_user_only(folder: Path) -> None:
    assert profile_names() == []
    properties = {"bootstrap.servers": "b:1", "sasl.password": "a=b #c"}
    file = write_profile("prod", properties)
    assert read_profile("prod") == properties
    assert (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    write_profile("prod", {"bootstrap.servers": "b:2"})
    assert read_profile("prod") == {"bootstrap.servers": "b:2"}
    assert profile_names() == ["prod"]
    assert [each.name for each in folder.iterdir()] == ["prod.properties"]


def test_a_profile_that_others_can_read_is_not_used(folder: Path) -> None:
    write_profile("prod", {"bootstrap.servers": "b:1"}).chmod(0o640)
    with pytest.raises(click.ClickException, match="chmod 600"):
        read_profile("prod")


@pytest.mark.parametrize("name", ["", "../etc/passwd", "a/b", ".hidden", "x" * 65])
def test_a_name_is_no_path(folder: Path, name: str) -> None:
    for act in (read_profile, lambda name: write_profile(name, {})):
        with pytest.raises(click.BadParameter):
            act(name)
    assert not folder.exists()


def test_a_name_that_is_misspelt_has_a_suggestion(folder: Path) -> None:
    with pytest.raises(click.ClickException, match="`odradek profile add` makes one"):
        read_profile("prod")
    write_profile("production", {})
    with pytest.raises(click.ClickException, match=r"did you mean production\?"):
        read_profile("prodution")
