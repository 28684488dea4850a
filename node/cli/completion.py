"""Shell completion: the script for a shell, and the names of topics and groups.

The names come from the cluster, with a short timeout and without errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, cast

import click
from click.shell_completion import CompletionItem, get_completion_class

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import (
    DEFAULT_BOOTSTRAP,
    ClusterConnection,
    cluster_option,
    cluster_properties,
    make_connection,
)
from odradek.node.cli.not_found import group_names, topic_names
from odradek.node.cli.profiles import read_profile

COMPLETION_TIMEOUT_S = 1.0
Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


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
    bootstrap = cluster_option(ctx, "bootstrap") or os.environ.get("ODRADEK_BOOTSTRAP")
    profile = cast("str | None", ctx.find_root().params.get("cluster_profile"))
    file = cluster_option(ctx, "client_config") or os.environ.get("ODRADEK_CLIENT_CONFIG")
    return make_connection(
        str(bootstrap or DEFAULT_BOOTSTRAP),
        COMPLETION_TIMEOUT_S,
        None if file is None else Path(str(file)),
        cluster_properties(ctx),
        {} if profile is None else read_profile(profile),
        is_bootstrap_named=bootstrap is not None,
    )


def _completion(names_of: Callable[[ClusterClient], set[str]]) -> Complete:
    def complete(
        ctx: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            with ClusterClient(_connection(ctx)) as client:
                names = names_of(client)
        except Exception:
            return []  # no completion is better than an error while a command is typed
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]

    return complete


complete_topic = _completion(topic_names)
complete_group = _completion(group_names)
