"""fencepost: caching and coordination that stays correct when processes pause, crash and race."""

from fencepost.client import AsyncClient, Client
from fencepost.errors import (
    ClientClosed,
    ConfigMismatch,
    Denied,
    FencepostError,
    FenceRefused,
    LeaseLost,
    LockTimeout,
    OutcomeUnknown,
    Overloaded,
    RefreshRejected,
    Refused,
    ServerError,
    Superseded,
    Unavailable,
    UnknownItem,
    WaitTimeout,
)
from fencepost.quorum import AsyncQuorum, Quorum

__all__ = [
    "AsyncClient",
    "AsyncQuorum",
    "Client",
    "ClientClosed",
    "ConfigMismatch",
    "Denied",
    "FenceRefused",
    "FencepostError",
    "LeaseLost",
    "LockTimeout",
    "OutcomeUnknown",
    "Overloaded",
    "Quorum",
    "RefreshRejected",
    "Refused",
    "ServerError",
    "Superseded",
    "Unavailable",
    "UnknownItem",
    "WaitTimeout",
]
__version__ = "0.1.0"
