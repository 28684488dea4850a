"""What a node remembers of its last run: under which broker epoch, and whether its logs may miss
their ends.

The controller takes a replica out of the ISR and of the eligible leaders when its broker comes back
with less than it had acknowledged (KIP-966). A process that is killed tears nothing: what it wrote
is the system's. Only with the system itself may the last second go, unless every append was on the
disk before its answer. So the file says which start of the system (boot id) the run belonged to,
and whether it ended in order, with all stores synced:

    what is found                                           what the node says
    ---------------------------------------------------------------------------------
    nothing                                                 nothing
    a run that ended in order                               its broker epoch
    a run of this start of the system                       its broker epoch
    any run, with durability=commit                         its broker epoch
    a run of another start of the system, or nonsense       -1: do not count upon my logs

Written when a registration is answered, which is before the node can be in any ISR under that
epoch; marked by the supervisor when its workers have closed their stores.
"""

import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from odradek.storage.settings import Durability

log = logging.getLogger(__name__)

NAME: Final = "last-run.json"
UNCLEAN: Final = -1
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class _LastRun(msgspec.Struct, frozen=True):
    broker_epoch: int
    boot_id: str = ""
    is_clean: bool = False


def boot_id() -> str:
    """Which start of the system this is; empty where it does not say."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def previous_broker_epoch(folder: Path, boot: str, durability: Durability) -> int | None:
    """The broker epoch of the last run if the logs have all that was acknowledged under it, LOST if
    they may not, None if nothing is known of a last run."""
    try:
        run = msgspec.json.decode((folder / NAME).read_bytes(), type=_LastRun)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("%s makes no sense, so this node's logs are not counted upon: %s", NAME, error)
        return UNCLEAN
    is_same_start = bool(boot) and run.boot_id == boot
    if run.is_clean or is_same_start or durability is Durability.COMMIT:
        return run.broker_epoch
    return UNCLEAN


def record_run(folder: Path, broker_epoch: int, boot: str) -> None:
    """This run's registration has been answered."""
    _write(folder, _LastRun(broker_epoch, boot))


def record_clean_shutdown(folder: Path) -> None:
    """The stores are synced and closed."""
    try:
        run = msgspec.json.decode((folder / NAME).read_bytes(), type=_LastRun)
    except (OSError, msgspec.MsgspecError):
        return
    _write(folder, msgspec.structs.replace(run, is_clean=True))


def _write(folder: Path, run: _LastRun) -> None:
    """Complete and on the disk, or as it was, and then the next start counts upon less."""
    unfinished = folder / f"{NAME}.new"
    try:
        with unfinished.open("wb") as stream:
            stream.write(msgspec.json.encode(run))
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(folder / NAME)
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        log.warning("cannot write %s: %s", NAME, error.strerror)
