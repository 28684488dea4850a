"""franz-go, the Go client: administration, groups of both protocols, and exactly-once copying.

The program in go/ checks what it sees by itself. It is built once, from modules that go.mod and
go.sum pin; where Go or the modules cannot be had the tests are skipped and say why.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conformance.dialogue import DialogueCluster, unique

SOURCE = Path(__file__).parent / "go"
FETCH_S = 180.0
BUILD_S = 300.0
RUN_S = 60.0


def go(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run Go's tool where the program is. It may change neither go.mod nor go.sum."""
    return subprocess.run(
        ["go", *arguments],
        cwd=SOURCE,
        env={**os.environ, "GOFLAGS": "-mod=readonly"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client program, built."""
    if shutil.which("go") is None:
        pytest.skip("needs go on the PATH")
    try:
        fetched = go("mod", "download", timeout_s=FETCH_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"franz-go could not be fetched within {FETCH_S:.0f} s")
    if fetched.returncode:
        why = (fetched.stderr.strip() or "go said nothing").splitlines()[-1]
        pytest.skip(f"franz-go could not be fetched: {why}")
    binary = tmp_path_factory.mktemp("go") / "franz"
    built = go("build", "-o", str(binary), ".", timeout_s=BUILD_S)
    assert built.returncode == 0, built.stderr
    return binary


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
