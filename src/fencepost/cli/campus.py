"""What the commands about campus share: its options, and its settings made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fencepost.errors import Refused

if TYPE_CHECKING:
    from fencepost.campus.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = [
    click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(".data"),
        show_default=True,
        envvar="FENCEPOST_DATA",
        show_envvar=True,
        help="Where everything is kept.",
    ),
    click.option(
        "--url",
        envvar="FENCEPOST_URL",
        show_envvar=True,
        help="The server of the likes; without one an embedded server runs in the data directory.",
    ),
    click.option(
        "--database",
        envvar="FENCEPOST_DATABASE",
        show_envvar=True,
        help="A SQLAlchemy URL; without one it is a SQLite file in the data directory.",
    ),
    click.option(
        "--namespace",
        envvar="FENCEPOST_NAMESPACE",
        default="campus",
        show_default=True,
        show_envvar=True,
        help="What keeps this campus apart from others on the same server.",
    ),
]


def where_options(command: F) -> F:
    """Options that say which campus is meant."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def make_settings(**options: Any) -> Settings:
    """Settings from options; what does not fit becomes one line."""
    try:
        from fencepost.campus.settings import Settings
    except ImportError as error:
        raise missing(error) from error
    given = {name: value for name, value in options.items() if value not in (None, "")}
    try:
        return Settings(**given)
    except Refused as error:
        raise click.ClickException(str(error)) from error


def missing(error: ImportError) -> click.ClickException:
    """The line for somebody who has installed too little."""
    extras = "campus,cli,embedded,prometheus,sql"
    return click.ClickException(f"{error}; install what campus needs: 'fencepost[{extras}]'")
