"""The command ``fencepost``; one file a noun."""

from fencepost.cli.main import main

__all__ = ["main"]
