"""A node's data folder: `meta.properties`, the lock, and small files that survive a full disk.

`meta.properties` has the form of Kafka's file of that name. It holds the cluster id, the node id,
the number of stores and the version of the layout. Formatting writes it once; every start checks
it, so that a volume mounted at the wrong node is not served.
"""

import errno
import fcntl
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from odradek.node.config import DEFAULT_STORE_COUNT, LogDirectory, NodeConfig
from odradek.node.config_sources import ConfigurationError
from odradek.protocol.types import uuid_to_text

LAYOUT_VERSION = 1
META_NAME = "meta.properties"
LOG_DIRS_NAME = "log.dirs"
"""In the data folder: the ids and paths of the log directories beside it, so that a volume that is
not mounted is not taken for a new directory."""
_STATE_BYTES = 1024


class MetaProperties(NamedTuple):
    """The content of meta.properties."""

    cluster_id: str
    node_id: int
    store_count: int
    version: int = LAYOUT_VERSION
    directory_id: str = ""
    """Random, so that a new folder differs from the one that a wiped disk had (KIP-858); empty in
    folders that old releases formatted."""


def new_cluster_id() -> str:
    """A random cluster id in Kafka's form: 22 characters of url-safe base64."""
    while True:
        text = uuid_to_text(uuid.uuid4().bytes)
        # A command line takes a leading dash for an option.
        if not text.startswith("-"):
            return text


def read_meta_properties(folder: Path) -> MetaProperties | None:
    """The folder's meta.properties; None if it is not formatted. Raises ConfigurationError."""
    path = folder / META_NAME
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror}") from error
    entries = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    try:
        properties = MetaProperties(
            entries["cluster.id"],
            int(entries["node.id"]),
            int(entries["store.count"]),
            int(entries["version"]),
            entries.get("directory.id", ""),
        )
    except (KeyError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is damaged ({error}): it needs version, cluster.id, node.id and store.count."
            " Copy it from another node of the cluster and set this node's id."
        ) from error
    if properties.version > LAYOUT_VERSION:
        raise ConfigurationError(
            f"{path} has layout version {properties.version}; this release supports"
            f" {LAYOUT_VERSION}. Start the newer release that wrote it."
        )
    return properties


def check_meta_properties(folder: Path, properties: MetaProperties, config: NodeConfig) -> None:
    """Raise ConfigurationError if the folder belongs to another node or cluster."""
    path = folder / META_NAME
    faults = []
    if properties.node_id != config.node_id:
        faults.append(
            f"node.id={config.node_id}: the data in {folder} belong to node {properties.node_id}"
            f" ({path}). Set node.id={properties.node_id} or choose another data folder."
        )
    if config.cluster_id not in ("", properties.cluster_id):
        faults.append(
            f"cluster.id={config.cluster_id}: the data in {folder} belong to cluster"
            f" {properties.cluster_id} ({path}). Choose another data folder."
        )
    if config.store_count not in (0, properties.store_count):
        faults.append(
            f"stores={config.store_count}: {folder} was formatted with {properties.store_count}"
            f" stores, which cannot be changed. Set stores={properties.store_count} or remove the"
            " setting."
        )
    if faults:
        raise ConfigurationError(*faults)


def adopt_meta_properties(
    config: NodeConfig, *, formats: bool, replaces: bool = False
) -> NodeConfig:
    """The configuration, completed with the meta.properties of the data folder and of the further
    log directories.

    `formats`: format a folder that is not formatted. Otherwise that is an error: a node that lost
    its data must not start empty. A further log directory that cannot be used is offline, unless
    it belongs to another node. `replaces`: format one that was formatted before and is empty now.
    """
    folder = config.data_folder
    properties = read_meta_properties(folder)
    if properties is None:
        if not formats:
            raise ConfigurationError(
                f"data={folder}: this folder is not formatted. Run odradek format, or check whether"
                " the right volume is mounted."
            )
        _check_not_orphaned(config)
        if config.needs_cluster_id and not config.cluster_id:
            raise ConfigurationError(
                f"data={folder}: this folder is not formatted, and all nodes of a cluster need the"
                " same cluster id. On every node set cluster.id, or run odradek format"
                f" --cluster-id, for example with {new_cluster_id()}"
            )
        properties = MetaProperties(
            config.cluster_id or new_cluster_id(),
            config.node_id,
            config.store_count or DEFAULT_STORE_COUNT,
            directory_id=str(uuid.uuid4()),
        )
        format_folder(folder, properties)
    check_meta_properties(folder, properties, config)
    config = msgspec.structs.replace(
        config,
        cluster_id=properties.cluster_id,
        store_count=properties.store_count,
        directory_id=properties.directory_id,
        worker_count=min(config.worker_count, properties.store_count),
    )
    further = _adopt_log_dirs(config, properties, formats=formats, replaces=replaces)
    return msgspec.structs.replace(config, further_log_dirs=further)


def unformatted_log_dirs(config: NodeConfig) -> list[str]:
    """The log directories beside the data folder that are not formatted. Raises
    ConfigurationError."""
    return [
        each.path
        for each in config.further_log_dirs
        if read_meta_properties(Path(each.path)) is None
    ]


def _adopt_log_dirs(
    config: NodeConfig, data: MetaProperties, *, formats: bool, replaces: bool
) -> tuple[LogDirectory, ...]:
    """The log directories beside the data folder, with their ids and problems."""
    if not config.further_log_dirs:
        return ()
    known = {} if replaces else _read_known_log_dirs(config.data_folder)
    adopted = []
    for directory in config.further_log_dirs:
        try:
            properties = _open_log_dir(directory, data, known, formats=formats)
        except OSError as error:
            adopted.append(LogDirectory(directory.path, known.get(directory.path, ""), str(error)))
            continue
        check_meta_properties(Path(directory.path), properties, config)
        for twin in (LogDirectory(config.data, data.directory_id), *adopted):
            if twin.directory_id != properties.directory_id:
                continue
            raise ConfigurationError(
                f"log.dirs: {directory.path} has the same {META_NAME} as {twin.path}. Each log"
                " directory has an id of its own; odradek format writes it."
            )
        adopted.append(LogDirectory(directory.path, properties.directory_id))
    text = "".join(f"{each.directory_id} {each.path}\n" for each in adopted if each.directory_id)
    path = config.data_folder / LOG_DIRS_NAME
    try:
        if not path.exists() or path.read_text() != text:
            write_durably(path, text)
    except OSError as error:
        raise ConfigurationError(f"Cannot write {path}: {error.strerror}") from error
    return tuple(adopted)


def _open_log_dir(
    directory: LogDirectory, data: MetaProperties, known: dict[str, str], *, formats: bool
) -> MetaProperties:
    """The meta.properties of a log directory beside the data folder. Raises OSError if it cannot be
    read or written, ConfigurationError if it is not formatted and is not to be."""
    folder = Path(directory.path)
    try:
        properties = read_meta_properties(folder)
    except ConfigurationError as error:
        raise OSError(str(error)) from error
    if properties is None and directory.path in known:
        raise OSError(
            f"{folder} is not formatted, but it was when this node ran last. Mount its volume. If"
            " its data are lost, run odradek format and the node continues with an empty directory."
        )
    if properties is None:
        if not formats:
            raise ConfigurationError(
                f"log.dirs={folder}: this directory is not formatted. Run odradek format, or check"
                " whether the right volume is mounted."
            )
        if (folder / "stores").is_dir() and any((folder / "stores").iterdir()):
            raise ConfigurationError(
                f"log.dirs={folder}: there are stores of a node here, but no {META_NAME}. Restore"
                " that file or choose another directory."
            )
        properties = data._replace(directory_id=str(uuid.uuid4()))
        try:
            format_folder(folder, properties)
        except ConfigurationError as error:
            raise OSError(str(error)) from error
    probe = os.open(folder / "node.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.close(probe)
    return properties


def _read_known_log_dirs(data_folder: Path) -> dict[str, str]:
    """The directory ids of the log directories that this node has had, by their paths."""
    try:
        lines = (data_folder / LOG_DIRS_NAME).read_text().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(f"Cannot read {error.filename}: {error.strerror}") from error
    pairs = (line.partition(" ") for line in lines)
    return {path: directory_id for directory_id, _, path in pairs if path}


def _check_not_orphaned(config: NodeConfig) -> None:
    """Raise ConfigurationError if there are data without their meta.properties: no process would
    accept them under a new cluster id."""
    left = [
        folder.name
        for folder in (config.metadata_folder, config.stores_folder)
        if folder.is_dir() and any(folder.iterdir())
    ]
    if left:
        raise ConfigurationError(
            f"data={config.data}: there is {' and '.join(left)} of a node here, but no {META_NAME}."
            " Restore that file or choose another data folder."
        )


def format_folder(folder: Path, properties: MetaProperties) -> None:
    """Write meta.properties into a folder that has none. Other content is not touched."""
    if read_meta_properties(folder) is not None:
        raise ConfigurationError(f"{folder} is formatted already.")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(
            folder / META_NAME,
            f"version={properties.version}\ncluster.id={properties.cluster_id}\n"
            f"node.id={properties.node_id}\nstore.count={properties.store_count}\n"
            + (f"directory.id={properties.directory_id}\n" if properties.directory_id else ""),
        )
    except OSError as error:
        raise ConfigurationError(
            f"Cannot format the data folder {folder}: {error.strerror}"
        ) from error


def write_durably(path: Path, text: str) -> None:
    """Replace a file: afterwards the new content is on the disk, or the old one is. Raises
    OSError."""
    unfinished = path.with_name(f"{path.name}.new")
    with unfinished.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class StateFile:
    """A small text file that can be replaced on a full disk too: a spare file beside it keeps its
    blocks. Readers see the old or the new text, padded with spaces."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spare = path.with_name(f"{path.name}.spare")

    def write(self, text: bytes) -> None:
        """Replace the text. Raises OSError if the disk is full and there is no spare file."""
        # Padded, so that a longer old text leaves nothing behind.
        text = text.ljust(-(-len(text) // _STATE_BYTES) * _STATE_BYTES)
        try:
            _write_file(self._spare, text, os.O_CREAT)
            self._spare.replace(self._path)
        except OSError:
            if not self._path.exists():
                raise
            # The blocks that the last write had freed are taken: overwrite in place.
            _write_file(self._path, text)
        with suppress(OSError):
            _write_file(self._spare, text, os.O_CREAT)

    def remove(self) -> None:
        """Delete the file. The spare file stays for the next write."""
        # On a read-only disk it stays, with the ids of processes that have ended.
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _write_file(path: Path, text: bytes, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    try:
        _write_over(descriptor, text)
    finally:
        os.close(descriptor)


def _write_over(descriptor: int, text: bytes) -> None:
    """Overwrite the file with `text` in place. Raises OSError."""
    if os.pwrite(descriptor, text, 0) != len(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, len(text))


class FolderLock:
    """Locks a folder for one node or one local cluster. The operating system releases it when the
    process ends."""

    def __init__(self, folder: Path, kind: str = "node") -> None:
        """Raises ConfigurationError if the folder cannot be written, or, with the process id, if
        another one has the lock. `kind` is what runs in the folder and the name of the lock's file.
        """
        path = folder / f"{kind}.lock"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"data={folder}: cannot write to this folder: {error.strerror}. Make it writable"
                " for this user or choose another data folder."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._file, 32).decode(errors="replace").strip()
            os.close(self._file)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise ConfigurationError(f"Cannot lock {path}: {error.strerror}") from error
            raise ConfigurationError(
                f"data={folder}: a {kind} is running in this folder (process"
                f" {holder or 'unknown'}). Stop it or choose another data folder."
            ) from error
        # On a full disk the process id is missing in the other one's error; nothing else.
        with suppress(OSError):
            _write_over(self._file, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Unlock the folder."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
