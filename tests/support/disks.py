"""Disks for a test: a tmpfs that can be filled to the last byte, and an ext4 that can fail."""

import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

_CHUNK = 4096


class SmallDisk:
    """A mounted file system. `fill` uses its free space, `empty` releases it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    @property
    def free_bytes(self) -> int:
        """The free space."""
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_frsize

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Write until only `leave_bytes` are free."""
        with self._ballast.open("ab", buffering=0) as ballast:
            while self.free_bytes > leave_bytes:
                ballast.write(bytes(_CHUNK))

    def empty(self) -> None:
        """Release the space that `fill` used."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """A disk of that size at `folder`, which is created. Skips the test where it cannot be
    mounted."""
    folder.mkdir(parents=True)
    mount = shutil.which("mount")
    if mount is None or os.getuid() != 0:
        pytest.skip("needs to mount a file system, which only root may do")
    options = f"size={size_bytes}"
    command = [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        # An exception that was caught may keep files open; a process that was killed does for a
        # moment.
        gc.collect()
        try:
            wait_until(lambda: _unmount(folder), what="the small disk can be unmounted")
        except AssertionError:
            # A test that failed still has files open: nobody else shall find the disk.
            _unmount(folder, "--lazy")
            raise


class FailingDisk:
    """A mounted ext4 file system."""

    def __init__(self, folder: Path, image: Path) -> None:
        self.folder = folder
        self._image = image

    def fail(self) -> None:
        """From now on the file system is read-only, as after an error of the disk. Files that are
        open stay open."""
        command = ["mount", "-o", "remount,abort", str(self.folder)]
        subprocess.run(command, check=True, capture_output=True)

    def mend(self) -> None:
        """Check the file system, and mount it again with what it has. No file in it may be open."""
        wait_until(lambda: _unmount(self.folder), what="the failed disk can be unmounted")
        # Its exit code says whether there was something to mend.
        subprocess.run(["e2fsck", "-fp", str(self._image)], capture_output=True, check=False)
        command = ["mount", "-o", "loop", str(self._image), str(self.folder)]
        subprocess.run(command, check=True, capture_output=True)


@contextmanager
def failing_disk(folder: Path, size_bytes: int) -> Iterator[FailingDisk]:
    """A disk of that size at `folder`, which is created, in a file beside it. Skips the test where
    it cannot be made."""
    folder.mkdir(parents=True)
    if os.getuid() != 0 or shutil.which("mkfs.ext4") is None or shutil.which("mount") is None:
        pytest.skip("needs mkfs.ext4, and to mount a file system, which only root may do")
    image = folder.with_name(f"{folder.name}.image")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    made = subprocess.run(["mkfs.ext4", "-q", str(image)], capture_output=True, check=False)
    mount = ["mount", "-o", "loop", str(image), str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode or mounted.returncode:
        pytest.skip(f"cannot mount a file system: {mounted.stderr.strip()}")
    try:
        yield FailingDisk(folder, image)
    finally:
        gc.collect()
        try:
            wait_until(lambda: _unmount(folder), what="the failing disk can be unmounted")
        except AssertionError:
            _unmount(folder, "--lazy")
            raise
        finally:
            image.unlink()


def _unmount(folder: Path, *options: str) -> bool:
    command = ["umount", *options, str(folder)]
    return not subprocess.run(command, capture_output=True, check=False).returncode
