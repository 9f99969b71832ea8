"""What an error permits next: written once, for the link of a loop and for the sockets of threads.

May be tried again: what was not sent, what the server refused whole, and what its script declares
harmless. All else is told to the caller as it is. And once one try may have been applied, no later
failure may claim that nothing was: the call ends with that ``OutcomeUnknown``.
"""

from __future__ import annotations

import random
import ssl
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from fencepost._core.backoff import Backoff
from fencepost._core.port import OtherServer
from fencepost.errors import (
    ClientClosed,
    Denied,
    FencepostError,
    OutcomeUnknown,
    Overloaded,
    Refused,
    ScriptMissing,
    Unavailable,
)
from fencepost.wire import resp

if TYPE_CHECKING:
    from fencepost._core.script import Call

RECONNECT: Final = Backoff(0.02, 1.0)
_REPLY: Final = 0.01  # seconds: what a reply may take even on a busy machine


class Next(Enum):
    """What to do with a call that failed once."""

    AGAIN = "send it again"
    TEXT = "send its script's text"
    ELSEWHERE = "drop this connection, then send it again"


class Trouble:
    """What one call has met so far."""

    __slots__ = ("_tries", "pause", "unknown", "whole")

    def __init__(self) -> None:
        self._tries = 0
        self.pause = 0.0  # seconds to wait before the next try
        self.unknown: OutcomeUnknown | None = None
        self.whole = False  # the next try sends the script's text

    def meet(self, call: Call[Any], error: FencepostError, *, left: float) -> Next:
        """Judge one more failure.

        Args:
            call: What was tried.
            error: How it failed.
            left: Seconds of its budget; 0 if there may be no other try.

        Returns:
            How to go on, after ``pause``.

        Raises:
            FencepostError: The call ends here.
        """
        after = self._judge(call, error)
        self.pause = 0.0
        if after is not None and after is not Next.TEXT:
            if self._tries:
                self.pause = RECONNECT.delay(self._tries, random.random())
            self._tries += 1
        # A try with no time left for its reply would turn a clear refusal into an unknown outcome.
        if after is None or self.pause + _REPLY >= left:
            raise self._final(error, judged=after is not None)
        self.whole = after is Next.TEXT
        return after

    def _judge(self, call: Call[Any], error: FencepostError) -> Next | None:
        if isinstance(error, ScriptMissing):
            return Next.TEXT if call.script is not None and not self.whole else None
        if isinstance(error, resp.NotPrimary):
            return Next.ELSEWHERE
        if isinstance(error, ClientClosed | Denied | OtherServer | Refused):
            return None
        if isinstance(error, OutcomeUnknown):
            self.unknown = error
            return Next.AGAIN if call.resend else None
        if isinstance(error, resp.NotReady | Unavailable):
            return Next.AGAIN
        return None

    def _final(self, error: FencepostError, *, judged: bool) -> FencepostError:
        if isinstance(error, OtherServer):
            return error  # a protocol decides anew
        if self.unknown is not None and isinstance(
            error, resp.NotReady | resp.NotPrimary | ScriptMissing | Unavailable | Overloaded
        ):
            self.unknown.__cause__ = error
            return self.unknown
        if judged and isinstance(error, resp.NotReady | resp.NotPrimary):
            refused = Unavailable(f"the server refuses for now, nothing was applied: {error}")
            refused.__cause__ = error
            return refused
        return error


def lost(reason: str) -> OutcomeUnknown:
    """The error of a request whose bytes went out and whose reply will not come."""
    return OutcomeUnknown(
        f"the reply was lost ({reason}): the request was applied once or not at all"
    )


def unsent(reason: str) -> Unavailable:
    """The error of a request whose bytes did not go out."""
    return Unavailable(f"the connection ended before the request was sent: {reason}")


def unreachable(address: str, error: Exception) -> Unavailable:
    """The error of a connection that could not be opened."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Denied(
            f"the certificate at {address} is not to be trusted: {error}. Nothing was sent; "
            "give its authority (ssl_ca_certs) and the host name that it is made for"
        )
    return Unavailable(f"no server answers at {address}: {error}. Nothing was sent")


def no_connection(budget: float, why: str) -> Unavailable:
    """The error of a call that found no connection in its time; ``why`` is the last failure."""
    if why:
        return Unavailable(f"{why} (tried for {budget:g} s)")
    return Unavailable(f"no connection to the server within {budget:g} s. Nothing was sent")


def closed() -> ClientClosed:
    """The error of a call on a closed client."""
    return ClientClosed("the client is closed; nothing was sent")
