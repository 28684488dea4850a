"""Watches the configuration file of a running node, and the file of the cluster's secrets.

A change is read when the file has been the same at two looks, because it may be written in parts,
and is checked as a whole, with the environment and the command line. A file that is not valid is
refused as a whole: the node keeps what it has, and says so once in the log, in its metrics and to
probes, until the file is valid again. The supervisor looks once a second.
"""

from collections.abc import Callable
from pathlib import Path

from odradek.node.config import NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.node.structured_log import get_logger

log = get_logger(__name__)

LOOK_S = 1.0

_Signature = tuple[tuple[int, int, int] | None, ...]


class ConfigFileWatch:
    """See the module's docstring. `file` may be None: a node may have only the other one. `load`
    reads the files and the other sources again; `accepted` is what was read when the node was
    started."""

    def __init__(
        self, file: Path | None, load: Callable[[], NodeConfig], accepted: NodeConfig
    ) -> None:
        self.accepted = accepted
        """The newest valid configuration that was read."""
        self.problem = ""
        """Why the file is refused; empty if it is not."""
        self.applied_count = 0
        self.refused_count = 0
        self._file = file
        self._load = load
        self._seen = self._looked_at = self._signature()
        self._next_look = 0.0

    def poll(self, now: float) -> NodeConfig | None:
        """The new configuration, if a valid one has just been found; `accept` or `refuse` follows.
        `now` is in seconds."""
        if now < self._next_look:
            return None
        self._next_look = now + LOOK_S
        signature = self._signature()
        is_settled = signature == self._looked_at
        self._looked_at = signature
        if signature == self._seen or not is_settled:
            return None
        self._seen = signature
        try:
            return self._load()
        except ConfigurationError as error:
            self.refuse(error)
            return None

    def accept(self, config: NodeConfig) -> None:
        """The configuration is in effect."""
        self.accepted = config
        self.applied_count += 1
        if self.problem:
            log.info("the configuration file is valid again", path=self._name)
        self.problem = ""

    def refuse(self, error: ConfigurationError) -> None:
        """The configuration cannot be used."""
        self.problem = "; ".join(error.faults)
        self.refused_count += 1
        log.error(
            "the changed configuration file is refused as a whole, the configuration stays as"
            " it was",
            path=self._name,
            reason=self.problem,
        )

    @property
    def _files(self) -> list[Path]:
        secret = self.accepted.secret_file
        return [*filter(None, (self._file, Path(secret) if secret else None))]

    @property
    def _name(self) -> str:
        return " or ".join(map(str, self._files))

    def _signature(self) -> _Signature:
        return tuple(map(_signature_of, self._files))


def _signature_of(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
