"""The installed package: its top-level names, real files, the command, the pytest plugin, no tests.

The wheel is installed into an empty environment, beside a project with packages of the same names
as our folders. The command and the fixture run there.
"""

import json
import shutil
import signal
import subprocess
import tarfile
import tomllib
import venv
import zipfile
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[1]
FOLDERS = {"protocol", "storage", "cluster", "coordinator", "node", "pipeline"}
# Spark looks for data sources in top-level modules with names of this kind.
SPARK_MODULE = "pyspark_odradek.py"
BUILD = """
import sys
from setuptools import build_meta
target = sys.argv[1]  # a build replaces sys.argv
build_meta.build_sdist(target)
build_meta.build_wheel(target)
"""
BUILD_REQUIREMENTS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"][
    "requires"
]
WHICH_WALKER = "from odradek.protocol import record_walker; print(record_walker.__file__)"
NO_INDEX = "No matching distribution found"


def run(
    *command: str | Path, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def pip_install(python: Path, *names: str | Path) -> None:
    """Install into an environment with the surrounding pip's settings."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, *(str(name) for name in names)], capture_output=True, text=True, check=False
    )
    if NO_INDEX in done.stderr:
        pytest.skip(f"no package index to install {names} from")
    assert done.returncode == 0, done.stderr[-2000:]


def copy_sources(target: Path) -> None:
    """What a build reads, as in a clone: -P lets links be links, and nothing is compiled yet."""
    files = ["pyproject.toml", "setup.py", "README.md", SPARK_MODULE]
    tracked = [*sorted(FOLDERS), "odradek", *files]
    subprocess.run(
        ["cp", "-r", "-P", *(str(REPOSITORY / name) for name in tracked), target], check=True
    )
    for module in target.rglob("*.so"):
        module.unlink()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with pip only."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, environment: Path) -> Path:
    """The folder with sdist and wheel, built from a copy: setuptools leaves build/ behind."""
    source = tmp_path_factory.mktemp("source")
    target = tmp_path_factory.mktemp("built")
    copy_sources(source)
    pip_install(environment, *BUILD_REQUIREMENTS)
    done = run(environment, "-c", BUILD, target, cwd=source)
    assert done.returncode == 0, done.stderr[-2000:]
    return target


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (file,) = built.glob("odradek-*.whl")
    return file


@pytest.fixture(scope="module")
def installed(environment: Path, wheel: Path) -> Path:
    """The Python of the environment, with the wheel and its dependencies."""
    pip_install(environment, wheel, "pytest")
    return environment


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose packages have the names of our folders."""
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'the project'\n")
    return tmp_path


def our_modules() -> set[str]:
    """Every module of the repository, by the path that it is installed at."""
    below = {
        f"odradek/{path.relative_to(REPOSITORY)}"
        for name in FOLDERS
        for path in (REPOSITORY / name).rglob("*.py")
    }
    own = {f"odradek/{path.name}" for path in (REPOSITORY / "odradek").glob("*.py")}
    return below | own | {SPARK_MODULE}


def test_the_wheel_holds_one_package_with_every_module_and_what_spark_looks_for(
    wheel: Path,
) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"odradek", SPARK_MODULE}
    assert {name for name in names if name.endswith(".py")} == our_modules()
    assert "odradek/py.typed" in names


def test_the_sdist_holds_files_where_the_repository_has_links(built: Path) -> None:
    (file,) = built.glob("odradek-*.tar.gz")
    with tarfile.open(file) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    assert {name for name in members if name.endswith(".py")} == our_modules() | {"setup.py"}
    assert "odradek/py.typed" in members


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
def test_the_walk_over_records_is_compiled_where_there_is_a_compiler(
    installed: Path, tmp_path: Path
) -> None:
    done = run(installed, "-c", WHICH_WALKER, cwd=tmp_path)
    assert done.stdout.endswith(".so\n"), done.stdout + done.stderr


def test_without_a_compiler_the_package_is_built_all_the_same(
    built: Path, environment: Path, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "built"
    source.mkdir()
    copy_sources(source)
    done = run(environment, "-c", BUILD, target, cwd=source, CC="/bin/false", CXX="/bin/false")
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = target.glob("odradek-*.whl")
    names = zipfile.ZipFile(file).namelist()
    assert {name for name in names if name.endswith(".py")} == our_modules()
    assert not [name for name in names if name.endswith(".so")]


def test_the_command_and_the_pytest_plugin_are_entry_points(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (file,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    entries = ConfigParser()
    entries.read_string(archive.read(file).decode())
    assert dict(entries["console_scripts"]) == {"odradek": "odradek.node.cli.main:main"}
    assert dict(entries["pytest11"]) == {"odradek": "odradek.testing"}
    module, _, function = entries["console_scripts"]["odradek"].partition(":")
    assert callable(getattr(import_module(module), function))


def test_only_odradek_can_be_imported_where_it_is_installed(
    installed: Path, tmp_path: Path
) -> None:
    assert run(installed, "-c", "import odradek.node", cwd=tmp_path).returncode == 0
    for name in FOLDERS:
        done = run(installed, "-c", f"import {name}", cwd=tmp_path)
        assert "ModuleNotFoundError" in done.stderr, name


@pytest.mark.e2e
def test_the_fixture_works_in_a_project_with_packages_of_the_same_names(
    installed: Path, project: Path
) -> None:
    (project / "test_project.py").write_text(
        "import cluster, coordinator, node, protocol, storage\n"
        "def test_both(kafka_broker):\n"
        "    kafka_broker.create_topic('orders')\n"
        "    assert {m.OWNER for m in (cluster, coordinator, node, protocol, storage)}"
        " == {'the project'}\n"
    )
    done = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.e2e
def test_the_command_works_in_a_project_with_packages_of_the_same_names(
    installed: Path, project: Path
) -> None:
    """Both as a script and as `-m odradek`, which puts the project's folder on the path."""
    commands: list[list[str | Path]] = [
        [installed.parent / "odradek"],
        [installed, "-m", "odradek"],
    ]
    for index, command in enumerate(commands):
        done = run(*command, "--version", cwd=project)
        assert done.stdout.startswith("odradek "), done.stderr
        data = project / f"data-{index}"
        words = [*command, "serve", "--attached", "--listen", "127.0.0.1:0", "--data", data]
        with subprocess.Popen(words, cwd=project, stdin=subprocess.PIPE) as node:
            state = data / "node.json"
            try:
                wait_until(lambda: state.exists() or node.poll() is not None)  # noqa: B023
                address = json.loads(state.read_text())["bootstrap"]
                done = run(*command, "topic", "create", "orders", "-b", address, cwd=project)
                assert done.returncode == 0, done.stderr
            finally:
                node.terminate()
        assert node.returncode in (0, -signal.SIGTERM)


def test_every_dependency_gives_its_reason() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    block = text.partition("dependencies = [")[2].partition("]\n")[0]
    lines = [line for line in block.splitlines() if line.strip()]
    assert lines
    assert [line for line in lines if "# " not in line] == []
