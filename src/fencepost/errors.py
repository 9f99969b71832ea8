"""Every error fencepost raises: yes, no and *unknown* are different types.

FencepostError
├── Unavailable          not sent, or refused whole: nothing was applied
│   ├── ClientClosed     the client was closed before the call
│   └── Denied           wrong credentials, database or certificate (mend the URL)
├── OutcomeUnknown       sent, and the reply was lost: it may have been applied, once
├── Overloaded           refused at the door to protect what is behind it (retry_after)
├── WaitTimeout          a bounded wait ended (also a TimeoutError)
│   └── LockTimeout      somebody else held the lock all the time (owner, fence, remaining)
├── LeaseLost            the lease ended before the work did
├── FenceRefused         a resource has seen a newer holder (fence)
│   └── Superseded       a flusher that was paused: the source has seen a newer one; nothing was written
├── RefreshRejected      a late writer was refused (reason)
├── UnknownItem          no such item at the source (also a LookupError)
├── Refused              bad input or configuration, nothing was changed (also a ValueError)
│   └── ConfigMismatch   another process set this up differently
└── ServerError          the server answered with an error (code)
    └── ScriptMissing    the server does not have the script (handled inside)
"""

from __future__ import annotations


class FencepostError(Exception):
    """Root of every error that fencepost raises on purpose."""


class Unavailable(FencepostError):
    """The request was not sent, or the server refused it whole: nothing was applied.

    Retrying is always safe.
    """


class ClientClosed(Unavailable):
    """The client was closed; make a new one."""


class Denied(Unavailable):
    """The server refused the credentials or the database, or its certificate is not to be trusted.

    Nothing was applied. It is told at once, not after the call's budget: until the URL or the server
    changes, no try helps.
    """


class OutcomeUnknown(FencepostError):
    """The request was sent and its reply was lost: it was applied once or not at all.

    Never applied twice: nothing is re-sent unless its script says that this is harmless.
    Read the state before you decide, or repeat if your operation is absolute (``set`` to a value).
    """


class Overloaded(FencepostError):
    """Refused at the door: a limit that protects the server or the origin is reached.

    Args:
        message: What is full and what to do.
        retry_after: Seconds after which a new try makes sense.
    """

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class WaitTimeout(FencepostError, TimeoutError):
    """A bounded wait ended without the thing that was waited for."""


class LockTimeout(WaitTimeout):
    """Somebody else held the lock for all the time that the caller waited; nothing is held.

    Args:
        message: Who holds it.
        owner: What that one calls itself; empty if the lock was kept free for who waits longer.
        fence: Of that one's lease.
        remaining: Seconds until that lease ends, if it is not renewed.
    """

    def __init__(
        self, message: str, *, owner: str = "", fence: int = 0, remaining: float = 0.0
    ) -> None:
        super().__init__(message)
        self.owner = owner
        self.fence = fence
        self.remaining = remaining


class LeaseLost(FencepostError):
    """The lease ended before the work did; somebody else may hold it by now."""


class FenceRefused(FencepostError):
    """A resource has seen a newer holder than this one, and refused the act; nothing was changed.

    Args:
        message: What was refused.
        fence: The one that stands there; acquire with ``floor=fence + 1`` if the server lost its data.
    """

    def __init__(self, message: str, *, fence: int = 0) -> None:
        super().__init__(message)
        self.fence = fence


class Superseded(FenceRefused):
    """The source has seen the fence of a newer writer: this one was paused, and wrote nothing.

    Args:
        message: What was refused.
        by: What stands there: a newer ``fence``, or a newer ``epoch``.
    """

    def __init__(self, message: str, *, by: str = "fence") -> None:
        super().__init__(message)
        self.by = by


class RefreshRejected(FencepostError):
    """A late writer was refused.

    Args:
        message: What was refused.
        reason: Why, one word: ``expired`` (alone), ``successor``, ``invalidated``, ``writing`` (beside an
            announced write) or ``older``.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnknownItem(FencepostError, LookupError):
    """The source has no such item; nothing was written."""


class Refused(FencepostError, ValueError):
    """Bad input or configuration, refused at the door; nothing was changed."""


class ConfigMismatch(Refused):
    """Another process runs the same thing with other settings; running on would split its truth."""


class ServerError(FencepostError):
    """The server answered with an error.

    Args:
        message: The server's own words.
        code: The first word of the reply: ``WRONGTYPE``, ``NOPERM``, ``ERR`` …
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message.split(" ", 1)[0]


class ScriptMissing(ServerError):
    """NOSCRIPT: the server does not have this script (any more)."""
