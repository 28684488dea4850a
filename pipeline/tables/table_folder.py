"""Files of a table's folder on any file system of pyarrow, durable and atomic on a local disk.

A file that is written appears as a whole or not at all, and what `write_text` and `move` did is
there after a power loss. (On object stores both are what a PUT and a copy are.) Names are relative
to the folder and have `/`.
"""

import os
from collections.abc import Iterable
from contextlib import suppress

import pyarrow as pa
from pyarrow import fs

from odradek.pipeline.errors import PipelineError


class TableFolder:
    """A folder, which need not exist yet."""

    def __init__(self, location: str) -> None:
        """A path or a URI; PipelineError if pyarrow has no file system for it."""
        self.location = location
        try:
            if "://" in location:
                self.filesystem, path = fs.FileSystem.from_uri(location)
            else:
                self.filesystem, path = fs.LocalFileSystem(), os.path.abspath(location)
        except (pa.ArrowInvalid, OSError) as error:
            raise PipelineError(f"table {location}: {error}") from error
        self.path: str = path.rstrip("/")
        self.is_local = isinstance(self.filesystem, fs.LocalFileSystem)

    def path_of(self, name: str) -> str:
        """The path on the file system."""
        return f"{self.path}/{name}" if name else self.path

    def uri_of(self, name: str) -> str:
        """The path with the scheme of the file system, for those who open it themselves."""
        if self.is_local:
            return f"file://{self.path_of(name)}"
        return f"{self.location.rstrip('/')}/{name}"

    def read_text(self, name: str) -> str | None:
        """None if there is no such file."""
        try:
            with self.filesystem.open_input_file(self.path_of(name)) as file:
                return bytes(file.readall()).decode()
        except FileNotFoundError:
            return None

    def write_text(self, name: str, text: str) -> None:
        """Replace a file, durably. OSError, of a full disk for instance, leaves the old one."""
        path, unfinished = self.path_of(name), self.path_of(f"{name}.tmp")
        self.filesystem.create_dir(os.path.dirname(path), recursive=True)
        try:
            with self.filesystem.open_output_stream(unfinished) as file:
                file.write(text.encode())
            if self.is_local:
                sync_file(unfinished)
            self.filesystem.move(unfinished, path)
        except OSError:
            with suppress(OSError):
                self.filesystem.delete_file(unfinished)
            raise
        self._sync_folder(os.path.dirname(path))

    def move(self, moves: Iterable[tuple[str, str]]) -> None:
        """Move files, durably; one that was moved before stays. PipelineError if one is lost."""
        folders = set()
        for source, target in moves:
            folder = os.path.dirname(self.path_of(target))
            if folder not in folders:
                self.filesystem.create_dir(folder, recursive=True)
                folders.add(folder)
            if self.exists(source):
                self.filesystem.move(self.path_of(source), self.path_of(target))
            elif not self.exists(target):
                raise PipelineError(
                    f"{self.path_of(source)} is lost, and the table needs it: restore it, or let"
                    " the job fill a new table"
                )
        for folder in folders:
            self._sync_folder(folder)
        if folders:
            self._sync_folder(self.path)

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder."""
        found = self.filesystem.get_file_info(self.path_of(name))
        return bool(found.type != fs.FileType.NotFound)

    def names(self, name: str = "") -> list[str]:
        """Names in a folder, sorted; empty if there is none."""
        selector = fs.FileSelector(self.path_of(name), allow_not_found=True)
        return sorted(each.base_name for each in self.filesystem.get_file_info(selector))

    def delete_folder(self, name: str) -> None:
        """With all that is in it; it need not exist."""
        with suppress(FileNotFoundError):
            self.filesystem.delete_dir(self.path_of(name))

    def delete_files(self, names: Iterable[str]) -> None:
        """Durably; a file that was deleted before stays so."""
        folders = set()
        for name in names:
            path = self.path_of(name)
            with suppress(FileNotFoundError):
                self.filesystem.delete_file(path)
            folders.add(os.path.dirname(path))
        for folder in folders:
            with suppress(FileNotFoundError):
                self._sync_folder(folder)

    def _sync_folder(self, path: str) -> None:
        if self.is_local:
            sync_file(path)


def sync_file(path: str) -> None:
    """Until the file, or the names in a folder, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
