"""The lab as one page: it draws each schedule as lanes and steps through it, without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from fencepost.testing.lab.story import Performed, Story

_PLACE = "/*STORIES*/"


def as_data(
    told: Mapping[str, Sequence[Performed]], stories: Mapping[str, Story]
) -> list[dict[str, Any]]:
    """What was played, for JSON.

    Args:
        told: The columns by their story's name.
        stories: The stories.
    """
    return [
        {
            "name": name,
            "race": stories[name].race,
            "title": stories[name].title,
            "sense": stories[name].sense,
            "columns": [column.as_dict() for column in columns],
        }
        for name, columns in told.items()
    ]


def render(data: Sequence[dict[str, Any]]) -> str:
    """The page."""
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    # Inside <script> a text may say anything but "</": no text of a story can end it.
    return template.replace(_PLACE, json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"), 1)
