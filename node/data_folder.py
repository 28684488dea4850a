"""A node's data folder: whose it is, and that only one node at a time uses it.

`meta.properties` in it, in the form of Kafka's file of that name, says to which cluster and node
the data belong, in how many stores they are kept and in which version of the layout. It is written
once, by formatting, and checked at every start: a folder that was mounted in the wrong place must
not be served.
"""

import base64
import errno
import fcntl
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from odradek.node.config import DEFAULT_STORE_COUNT, NodeConfig
from odradek.node.config_sources import ConfigurationError

LAYOUT_VERSION = 1
META_NAME = "meta.properties"
LOCK_NAME = "node.lock"
_STATE_BYTES = 1024


class MetaProperties(NamedTuple):
    """What meta.properties says."""

    cluster_id: str
    node_id: int
    store_count: int
    version: int = LAYOUT_VERSION
    directory_id: str = ""
    """Random, so that a folder is told from the one that was there before a disk was wiped; empty
    in one that was formatted before there were such ids."""


def new_cluster_id() -> str:
    """A random cluster id in Kafka's form: 22 characters of url-safe base64."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # A leading dash would read as an option on a command line.
        if not text.startswith("-"):
            return text


def read_meta_properties(folder: Path) -> MetaProperties | None:
    """Whose folder this is; None if it was not formatted. ConfigurationError if it cannot be
    ours."""
    path = folder / META_NAME
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    entries = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    try:
        version = int(entries["version"])
        if version > LAYOUT_VERSION:
            raise ConfigurationError(
                f"{path} is of layout version {version}, this release knows {LAYOUT_VERSION}:"
                " start the newer release that wrote it"
            )
        return MetaProperties(
            entries["cluster.id"],
            int(entries["node.id"]),
            int(entries["store.count"]),
            version,
            entries.get("directory.id", ""),
        )
    except (KeyError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(
            f"{path} is damaged ({error}): it needs version, cluster.id, node.id and store.count;"
            " restore it from another node of the cluster with this node's id"
        ) from error


def check_meta_properties(
    identity: MetaProperties,
    folder: Path,
    *,
    node_id: int,
    store_count: int = 0,
    cluster_id: str = "",
) -> None:
    """Raise ConfigurationError if the folder belongs to another node or cluster than it is to
    serve.

    `store_count` 0 and an empty `cluster_id` mean: whatever the folder says.
    """
    path = folder / META_NAME
    faults = []
    if identity.node_id != node_id:
        faults.append(
            f"node.id={node_id}: the data in {folder} belong to node {identity.node_id} ({path});"
            f" set node.id={identity.node_id} or choose another data folder"
        )
    if cluster_id and identity.cluster_id != cluster_id:
        faults.append(
            f"cluster.id={cluster_id}: the data in {folder} belong to cluster"
            f" {identity.cluster_id} ({path}); choose another data folder"
        )
    if store_count and identity.store_count != store_count:
        faults.append(
            f"stores={store_count}: {folder} was formatted with {identity.store_count} stores and"
            f" keeps that number; set stores={identity.store_count} or leave it out"
        )
    if faults:
        raise ConfigurationError(*faults)


def adopt_meta_properties(config: NodeConfig, *, formats: bool) -> NodeConfig:
    """The configuration completed with what its data folder says.

    A folder that is no node's yet is made one if `formats`, else that is a fault: a node that
    has lost its data must not start empty by itself.
    """
    folder = config.data_folder
    identity = read_meta_properties(folder)
    if identity is None:
        if not formats:
            raise ConfigurationError(
                f"data={folder}: this folder is not formatted; run odradek format, or check"
                " whether the right volume is mounted here"
            )
        _check_nobodys(config)
        if config.needs_cluster_id and not config.cluster_id:
            raise ConfigurationError(
                f"data={folder}: this folder is not formatted, and the nodes of a cluster must have"
                " one cluster id: set cluster.id, or run odradek format --cluster-id, with the same"
                f" on every node, for example {new_cluster_id()}"
            )
        identity = MetaProperties(
            config.cluster_id or new_cluster_id(),
            config.node_id,
            config.store_count or DEFAULT_STORE_COUNT,
            directory_id=str(uuid.uuid4()),
        )
        format_folder(folder, identity)
    check_meta_properties(
        identity,
        folder,
        node_id=config.node_id,
        store_count=config.store_count,
        cluster_id=config.cluster_id,
    )
    return msgspec.structs.replace(
        config,
        cluster_id=identity.cluster_id,
        store_count=identity.store_count,
        directory_id=identity.directory_id,
        worker_count=min(config.worker_count, identity.store_count),
    )


def _check_nobodys(config: NodeConfig) -> None:
    """Raise ConfigurationError if there are data that a lost meta.properties belonged to: under a
    new cluster id no process would take them."""
    left = [
        folder.name
        for folder in (config.metadata_folder, config.stores_folder)
        if folder.is_dir() and any(folder.iterdir())
    ]
    if left:
        raise ConfigurationError(
            f"data={config.data}: there is {' and '.join(left)} of a node here, but no {META_NAME}"
            " that says of which; restore that file, or choose another data folder"
        )


def format_folder(folder: Path, identity: MetaProperties) -> None:
    """Make the folder a node's. It must not be one yet; other contents are not touched.

    The file is complete and on the disk, or not there at all.
    """
    if read_meta_properties(folder) is not None:
        raise ConfigurationError(
            f"{folder} is formatted already; its data would not fit a new identity"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{META_NAME}.new"
        with unfinished.open("w") as stream:
            stream.write(
                f"version={identity.version}\ncluster.id={identity.cluster_id}\n"
                f"node.id={identity.node_id}\nstore.count={identity.store_count}\n"
                + (f"directory.id={identity.directory_id}\n" if identity.directory_id else "")
            )
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(folder / META_NAME)
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise ConfigurationError(
            f"cannot format the data folder {folder}: {error.strerror}"
        ) from error


class StateFile:
    """A small file of text that is renewed now and then, also on a full disk: beside it lies a
    spare one that has its block already. Readers see the old or the new text, and spaces behind it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spare = path.with_name(f"{path.name}.spare")

    def write(self, text: bytes) -> None:
        """Raises OSError if there is no room for it."""
        # Of one size, so that a text written over another leaves nothing of it.
        text = text.ljust(-(-len(text) // _STATE_BYTES) * _STATE_BYTES)
        try:
            _write_file(self._spare, text, os.O_CREAT)
            self._spare.replace(self._path)
        except OSError:
            if not self._path.exists():
                raise
            # Somebody took the block that the last renewal had freed.
            _write_file(self._path, text)
        with suppress(OSError):
            _write_file(self._spare, text, os.O_CREAT)

    def remove(self) -> None:
        """The text is not true any more. The spare file stays for the next one."""
        self._path.unlink(missing_ok=True)


def _write_file(path: Path, text: bytes, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    try:
        _write_over(descriptor, text)
    finally:
        os.close(descriptor)


def _write_over(descriptor: int, text: bytes) -> None:
    """Make `text` the file's content, in the blocks that it has. Raises OSError."""
    if os.pwrite(descriptor, text, 0) != len(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, len(text))


class FolderLock:
    """Holds a data folder for one node. Released by the system however the process ends."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigurationError if another node holds the folder, with its process id."""
        path = folder / LOCK_NAME
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._file, 32).decode(errors="replace").strip()
            os.close(self._file)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise ConfigurationError(f"cannot lock {path}: {error.strerror}") from error
            raise ConfigurationError(
                f"data={folder}: a node is running in this folder (process {holder or 'unknown'});"
                " stop it or choose another data folder"
            ) from error
        # On a full disk the next one is not told our process id; that shall not keep us away.
        with suppress(OSError):
            _write_over(self._file, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let another node have the folder."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
