"""Shell completion: the script for a shell, and the names a cluster knows.

Completing a topic or a group asks the cluster, with a short deadline and in silence: a shell that
stalls or prints an error while somebody types is worse than one that offers nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from odradek.node.cli.connection import DEFAULT_BOOTSTRAP, ClusterConnection

COMPLETION_TIMEOUT_S = 1.0


def complete_topic(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The cluster's topics that start with what is there."""
    try:
        metadata = _connection(ctx).admin().list_topics(timeout=COMPLETION_TIMEOUT_S)
    except Exception:
        return []  # nothing to offer is the only thing to say while somebody types
    return _starting_with(incomplete, metadata.topics)


def complete_group(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The cluster's groups that start with what is there."""
    try:
        admin = _connection(ctx).admin()
        listing = admin.list_consumer_groups(request_timeout=COMPLETION_TIMEOUT_S).result()
    except Exception:
        return []  # as above
    return _starting_with(incomplete, (group.group_id for group in listing.valid))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for your shell.

    \b
    bash   eval "$(odradek completion bash)"      in ~/.bashrc
    zsh    eval "$(odradek completion zsh)"       in ~/.zshrc
    fish   odradek completion fish > ~/.config/fish/completions/odradek.fish
    """
    shell_class = get_completion_class(shell)
    assert shell_class is not None, shell
    root = click.get_current_context().find_root().command
    script = shell_class(root, {}, "odradek", "_ODRADEK_COMPLETE")
    click.echo(script.source_template % script.source_vars())


def _connection(ctx: click.Context) -> ClusterConnection:
    bootstrap = ctx.params.get("bootstrap") or os.environ.get("ODRADEK_BOOTSTRAP")
    return ClusterConnection(
        bootstrap=bootstrap or DEFAULT_BOOTSTRAP, timeout_s=COMPLETION_TIMEOUT_S
    )


def _starting_with(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
