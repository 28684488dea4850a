"""Where the folders of a node are if the configuration names none.

Called by config.py, and by the commands that look for a node.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from odradek.node.config_parsers import RUN_FOLDER_LENGTH_MAX

_SHARED_MEMORY = "/dev/shm"


def default_data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The data folder if none is configured."""
    home = environment.get("XDG_DATA_HOME")
    base = Path(home) if home else Path.home() / ".local" / "share"
    return base / "odradek"


def default_run_folder(data_folder: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """A path for this data folder that is short enough for Unix sockets and private to the user."""
    name = hashlib.sha256(str(data_folder).encode()).hexdigest()[:12]
    base = environment.get("XDG_RUNTIME_DIR", "")
    if not base or not os.access(base, os.W_OK) or len(base) > RUN_FOLDER_LENGTH_MAX // 2:
        base = _temporary_folder(data_folder)
    return Path(base) / f"odradek-{os.getuid()}-{name}"


def _temporary_folder(data_folder: Path) -> str:
    """A folder for temporary files. In a container whose root file system is read-only there may be
    none; its /dev/shm is writable, and so is the data folder."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else str(data_folder)
