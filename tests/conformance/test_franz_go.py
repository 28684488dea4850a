"""franz-go, the Go client: administration, groups of both protocols, and exactly-once copying.

The program in go/ checks what it sees by itself. It is built once, from modules that go.mod and
go.sum pin; where Go or the modules cannot be had the tests are skipped and say why.
"""

import subprocess
from pathlib import Path

import pytest

from tests.conformance.dialogue import DialogueCluster, unique
from tests.support.franz_go import NoFranzGo, build_program

RUN_S = 60.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client program, built."""
    try:
        return build_program(tmp_path_factory.mktemp("go"))
    except NoFranzGo as why:
        pytest.skip(str(why))


@pytest.mark.parametrize(
    "scenario",
    [
        "admin",
        "cooperative",
        "consumer-protocol",
        "regex",
        "transactions",
        "transactions-consumer",
    ],
)
def test_franz_go_finds_nothing_amiss(
    program: Path, cluster: DialogueCluster, scenario: str
) -> None:
    done = subprocess.run(
        [str(program), "-bootstrap", cluster.bootstrap, "-name", unique("franz"), scenario],
        capture_output=True,
        text=True,
        timeout=RUN_S + 10,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
