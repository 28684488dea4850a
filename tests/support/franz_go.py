"""The client program of tests/conformance/go, on franz-go, built from modules that go.mod pins."""

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "conformance" / "go"
FETCH_S = 180.0
BUILD_S = 300.0


class NoFranzGo(Exception):
    """Go or the modules cannot be had; the message says why."""


def build_program(folder: Path) -> Path:
    """The program, built into `folder`; NoFranzGo where that is not possible."""
    if shutil.which("go") is None:
        raise NoFranzGo("needs go on the PATH")
    try:
        fetched = _go("mod", "download", timeout_s=FETCH_S)
    except subprocess.TimeoutExpired:
        raise NoFranzGo(f"franz-go could not be fetched within {FETCH_S:.0f} s") from None
    if fetched.returncode:
        why = (fetched.stderr.strip() or "go said nothing").splitlines()[-1]
        raise NoFranzGo(f"franz-go could not be fetched: {why}")
    binary = folder / "franz"
    built = _go("build", "-o", str(binary), ".", timeout_s=BUILD_S)
    assert built.returncode == 0, built.stderr
    return binary


def _go(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
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
