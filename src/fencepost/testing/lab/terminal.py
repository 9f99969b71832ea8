"""A story in a terminal: its columns side by side, the schedule that each meets, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fencepost.testing.lab.story import Performed, Story

_KINDS = {
    "usual": "the usual code",
    "fix": "the usual fix",
    "ours": "fencepost",
    "peer": "a library",
}
_COLOURS = ("cyan", "magenta", "yellow", "blue", "green", "bright_cyan", "bright_magenta")


def show(console: Console, story: Story, columns: Sequence[Performed]) -> None:
    """Print one story."""
    title = Text.assemble((story.title, "bold"), (f"   {story.name} {story.race}", "dim"))
    console.print(Padding(Group(title, Text(story.sense, "dim")), (1, 1, 0, 1)))
    table = Table(box=box.ROUNDED, expand=True, padding=(0, 1), show_lines=False)
    for one in columns:
        heading = Text(_KINDS[one.column.kind], "bold" if one.column.kind == "ours" else "")
        table.add_column(
            Group(heading, Text(f"{one.column.title} ({one.column.by})", "dim")), ratio=1
        )
    table.add_row(*map(_schedule, columns))
    table.add_section()
    table.add_row(*map(_verdict, columns))
    console.print(table)


def _schedule(one: Performed) -> Text:
    """The steps, a line each, a colour an actor."""
    told = Text()
    colours, of = cycle(_COLOURS), dict[str, str]()
    width = max(len(beat.actor) for beat in one.beats)
    for number, beat in enumerate(one.beats[1:], 1):
        colour = of.setdefault(beat.actor, next(colours) if beat.actor not in of else "")
        style = "bold red" if beat.step == "crash" or beat.actor == "world" else colour
        told.append(f"{number:2} ", "dim").append(f"{beat.actor:{width}} ", style).append(
            f"{beat.step}\n"
        )
    return told


def _verdict(one: Performed) -> Text:
    sign = ("✓ ", "bold green") if one.verdict.holds else ("✗ ", "bold red")
    return Text.assemble(sign, (one.verdict.text, sign[1].removeprefix("bold ")))


def against(console: Console, story: Story, columns: Sequence[Performed]) -> None:
    """Print how one library does in a story: a line, and the schedule where it fails."""
    for one in columns:
        sign = "[bold green]✓[/]" if one.verdict.holds else "[bold red]✗[/]"
        console.print(f"{sign} [bold]{story.name}[/] [dim]{story.race}[/]  ", end="")
        console.print(f"{one.column.title}: {one.verdict.text}", markup=False)
        if not one.verdict.holds:
            console.print(f"    {one.column.schedule}", style="dim", markup=False)
