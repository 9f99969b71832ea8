"""What the service runs with: one frozen record, checked at birth."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from fencepost.errors import Refused

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
TOKEN_MIN = 8
SECRET_MIN = 16
MAX_LEADER_TTL = 3600.0
MIN_PERIOD = 0.1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How campus runs.

    Args:
        host: The address to listen on.
        port: The TCP port; 0 takes a free one.
        data: The directory for everything that is kept; made with mode 0700.
        url: The server of the likes; None starts an embedded one in ``data``.
        database: A SQLAlchemy URL; None is a SQLite file in ``data``.
        namespace: What keeps this campus apart from others on the same server.
        token: What API clients and people must show; required beyond loopback.
        secret: The key that signs sessions; None keeps one in ``data``. Processes on several
            machines behind one address need the same.
        allow_hosts: Names that requests may be addressed to, besides loopback and ``host``.
        flusher: Whether this process writes likes from the journal to SQL.
        desk: Whether this process releases seats and sends reminders.
        hold: Seconds for which a seat is held.
        samples: Whether the first run makes sample activities.
        duties: Whether this process stands for election; the leader audits and makes the digests.
        leader_ttl: Seconds after which another one leads if the leader has died.
        digest_every: Seconds that a digest covers; they end at multiples of it, UTC.
        audit_every: Seconds between two audits.
        audit_sample: How many activities an audit compares, beside those that are owed to SQL.
        budget: Seconds that one call to the like server may take.
        drain: Seconds that a stop may take before the process gives up.

    Raises:
        Refused: A setting does not fit; the message says which and what to do.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    data: Path = Path(".data")
    url: str | None = None
    database: str | None = None
    namespace: str = "campus"
    token: str | None = None
    secret: str | None = None
    allow_hosts: tuple[str, ...] = ()
    flusher: bool = True
    desk: bool = True
    hold: float = 600.0
    samples: bool = True
    duties: bool = True
    leader_ttl: float = 15.0
    digest_every: float = 86_400.0
    audit_every: float = 3600.0
    audit_sample: int = 100
    budget: float = 2.0
    drain: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise Refused(f"port {self.port} is no TCP port: choose one from 1 to 65535")
        if self.budget <= 0 or self.drain <= 0 or self.hold <= 0:
            raise Refused("budget, drain and hold are seconds greater than 0")
        if not 0.5 <= self.leader_ttl <= MAX_LEADER_TTL:
            raise Refused(f"leader_ttl is 0.5 to {MAX_LEADER_TTL:g} seconds")
        if self.digest_every < MIN_PERIOD or self.audit_every < MIN_PERIOD:
            raise Refused(f"digest_every and audit_every are {MIN_PERIOD:g} seconds or more")
        if self.audit_sample < 1:
            raise Refused("audit_sample is 1 or more")
        if self.token is None and not is_loopback(self.host):
            raise Refused(
                f"{self.host} can be reached from other machines: set FENCEPOST_TOKEN"
                " (or --token) to a secret of your choice, or stay on 127.0.0.1"
            )
        if self.token is not None and len(self.token) < TOKEN_MIN:
            raise Refused(
                f"the token is too short to protect anything: use {TOKEN_MIN} or more characters"
            )
        if self.secret is not None and len(self.secret) < SECRET_MIN:
            raise Refused(f"the secret needs {SECRET_MIN} or more characters")

    @property
    def hosts(self) -> frozenset[str]:
        """The names (without port) that a request's ``Host`` may carry."""
        names = {*LOOPBACK_NAMES, *self.allow_hosts}
        if self.host not in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
            names.add(bracketed(self.host))
        return frozenset(name.lower() for name in names)

    @property
    def sqlite_path(self) -> Path:
        return self.data / "campus.sqlite3"

    @property
    def server_dir(self) -> Path:
        """Where the embedded server lives."""
        return self.data / "server"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bracketed(host: str) -> str:
    """The host as it stands in a URL: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host
