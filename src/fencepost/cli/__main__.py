"""``python -m fencepost.cli``, where the command itself is not on PATH."""

from fencepost.cli import main

main(prog_name="fencepost")
