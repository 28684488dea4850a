"""The clean shutdown file (KIP-966): may this broker's logs lack acknowledged records?

A broker that returns with less than it had acknowledged has to leave the ISR and the eligible
leader replicas. A killed process loses nothing: its writes are in the page cache. A crash of the
operating system may lose the last second, unless every append was synced before its response. So
the file holds the broker epoch, the boot id of the system, the weakest durability that the run had,
and whether all stores were synced at the end:

    file                                          previous_broker_epoch in the registration
    ---------------------------------------------------------------------------------
    none                                          none
    clean shutdown                                the broker epoch
    same boot id                                  the broker epoch
    any, and the whole run had durability=commit  the broker epoch
    another boot id, or a damaged file            -1: an unclean shutdown

Written when a registration is answered, before the node can be in any ISR under that epoch, and
before workers learn that appends are no longer synced; marked as clean by the supervisor when the
workers have closed their stores.
"""

from pathlib import Path
from typing import Final

import msgspec

from odradek.node.data_folder import write_durably
from odradek.node.structured_log import get_logger
from odradek.storage.settings import Durability

log = get_logger(__name__)

NAME: Final = "last-run.json"
UNCLEAN: Final = -1
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class _LastRun(msgspec.Struct, frozen=True):
    broker_epoch: int
    boot_id: str = ""
    is_clean: bool = False
    durability: Durability | None = None
    """None: written by an older release, whose durability only changed with a restart."""


def boot_id() -> str:
    """The kernel's boot id; empty where there is none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def previous_broker_epoch(folder: Path, boot: str, durability: Durability) -> int | None:
    """The last broker epoch if the logs have all that was acknowledged under it, UNCLEAN if they
    may not, None without a file. `durability` is that of the configuration."""
    try:
        run = msgspec.json.decode((folder / NAME).read_bytes(), type=_LastRun)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning(
            "a file is damaged: the last shutdown counts as unclean", path=NAME, reason=str(error)
        )
        return UNCLEAN
    is_same_start = bool(boot) and run.boot_id == boot
    was_synced = (run.durability or durability) is Durability.COMMIT
    if run.is_clean or is_same_start or was_synced:
        return run.broker_epoch
    return UNCLEAN


def record_run(folder: Path, broker_epoch: int, boot: str, durability: Durability) -> None:
    """Record the broker epoch of this run, and its weakest durability so far."""
    _write(folder, _LastRun(broker_epoch, boot, durability=durability))


def record_interval_durability(folder: Path) -> None:
    """Record that appends of this run may be acknowledged before they are synced."""
    try:
        run = msgspec.json.decode((folder / NAME).read_bytes(), type=_LastRun)
    except (OSError, msgspec.MsgspecError):
        return
    if run.durability is not Durability.INTERVAL:
        _write(folder, msgspec.structs.replace(run, durability=Durability.INTERVAL))


def record_clean_shutdown(folder: Path) -> None:
    """Record that all stores are synced and closed."""
    try:
        run = msgspec.json.decode((folder / NAME).read_bytes(), type=_LastRun)
    except (OSError, msgspec.MsgspecError):
        return
    _write(folder, msgspec.structs.replace(run, is_clean=True))


def _write(folder: Path, run: _LastRun) -> None:
    """A failure is logged only: the next start is then treated as unclean."""
    try:
        write_durably(folder / NAME, msgspec.json.encode(run).decode())
    except OSError as error:
        log.warning(
            "a file cannot be written: the next start counts as one after an unclean shutdown",
            path=NAME,
            reason=error.strerror,
        )
