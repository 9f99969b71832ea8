"""``python -m benches.peers [GROUP]...``: make the environments of some groups, or of all."""

from __future__ import annotations

import sys

from benches.peers import HERE, NotHere, python_of


def main() -> int:
    there = sorted(file.stem for file in HERE.glob("*.txt"))
    failed = 0
    for group in sys.argv[1:] or there:
        if group not in there:
            print(f"there is no group {group}; there are {', '.join(there)}", file=sys.stderr)
            return 2
        try:
            print(python_of(group))
        except NotHere as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
