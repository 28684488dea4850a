"""What is in the wheel: our packages by their names, the command, the pytest plugin, no tests."""

import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGES = {"protocol", "storage", "cluster", "coordinator", "node"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy: setuptools leaves build/ and egg-info behind where it works."""
    source = tmp_path_factory.mktemp("source")
    target = tmp_path_factory.mktemp("wheel")
    tracked = [*PACKAGES, "pyproject.toml", "README.md"]
    subprocess.run(["cp", "-r", *(str(REPOSITORY / name) for name in tracked), source], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    built = subprocess.run(
        [*command, str(target), str(source)], capture_output=True, text=True, check=False
    )
    if "No matching distribution found for setuptools" in built.stderr:
        pytest.skip("building a wheel needs a package index for setuptools")
    assert built.returncode == 0, built.stderr[-2000:]
    (file,) = target.glob("odradek-*.whl")
    return zipfile.ZipFile(file)


def project() -> Mapping[str, object]:
    table: Mapping[str, object] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return table


def test_the_wheel_holds_our_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == PACKAGES


def test_every_module_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if name.endswith(".py")}
    here = {
        str(path.relative_to(REPOSITORY))
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("*.py")
    }
    assert packed == here


def test_the_command_and_the_pytest_plugin_are_entry_points(wheel: zipfile.ZipFile) -> None:
    (file,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    entries = ConfigParser()
    entries.read_string(wheel.read(file).decode())
    assert dict(entries["console_scripts"]) == {"odradek": "node.cli.main:main"}
    assert dict(entries["pytest11"]) == {"odradek": "node.pytest_plugin"}
    module, _, function = entries["console_scripts"]["odradek"].partition(":")
    assert callable(getattr(import_module(module), function))


def test_every_dependency_gives_its_reason() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    block = text.partition("dependencies = [")[2].partition("]\n")[0]
    lines = [line for line in block.splitlines() if line.strip()]
    assert lines
    assert [line for line in lines if "# " not in line] == []
