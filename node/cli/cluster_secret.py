"""`odradek cluster new-secret`: a random secret for `cluster.secret.file`.

A file that exists is never changed: a node that has another secret than the others is not let in.
"""

import os
import secrets
import tempfile
from pathlib import Path
from typing import Final

import click

SECRET_BYTES: Final = 32


@click.command("new-secret", short_help="Write a random secret for the nodes of a cluster.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--if-missing", is_flag=True, help="A file that exists is kept, and is no error.")
def new_secret(file: Path, if_missing: bool) -> None:
    """Write a random secret into FILE, which only this user can read.

    Give every node of the cluster the same one, as cluster.secret.file. How a secret is replaced
    by another: docs/operating.md.
    """
    try:
        # Complete under another name first: a node that reads FILE finds all of it or nothing.
        descriptor, written = tempfile.mkstemp(".new", f"{file.name}.", file.parent)
        try:
            with os.fdopen(descriptor, "w") as stream:
                stream.write(f"{secrets.token_urlsafe(SECRET_BYTES)}\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.link(written, file)
        finally:
            os.unlink(written)
    except FileExistsError as error:
        if not if_missing:
            raise click.ClickException(
                f"{file} exists already. Remove it, or pass --if-missing"
            ) from error
        click.echo(f"{file} exists already.")
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error
    else:
        click.echo(f"Wrote {file}.")
