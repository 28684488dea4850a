"""Environments of Python in which packages are not installed, as where an extra was left out."""

import subprocess
import sys
import sysconfig
from pathlib import Path


def python_without(folder: Path, *packages: str) -> Path:
    """The interpreter of a new environment at `folder`, which has what ours has but these."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (own,) = folder.glob("lib/*/site-packages")
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if each.name.partition("-")[0].partition(".")[0].lower() not in packages:
            (own / each.name).symlink_to(each)
    return folder / "bin" / "python"
