"""Make a failing schedule short: leave words out as long as something still goes wrong.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002), without its
complements: halves, quarters … single words. What is left can't do without any of its words.
"""

from __future__ import annotations

from collections.abc import Callable

Follow = Callable[[list[str]], tuple[list[str], str]]


def minimise(words: list[str], follow: Follow) -> list[str]:
    """A part of a schedule that still finds something.

    Args:
        words: A schedule that does.
        follow: Runs a schedule, leaving out words that do not fit, up to where something is wrong;
            the words that were taken, and what is wrong ('' if nothing is).
    """
    size = max(1, len(words) // 2)
    while True:
        at, shorter = 0, False
        while at < len(words):
            told, message = follow(words[:at] + words[at + size :])
            if message and len(told) < len(words):
                words, shorter = told, True
            else:
                at += size
        if size == 1 and not shorter:
            return words
        size = max(1, size // 2)
