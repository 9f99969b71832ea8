"""Where a server is, read from a URL; bad ones are refused with the part that is wrong."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from fencepost.errors import Refused

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

_SCHEMES: Final = {
    "redis": "redis",
    "valkey": "redis",
    "rediss": "rediss",
    "valkeys": "rediss",
    "unix": "unix",
}
_TLS_OPTIONS: Final = {
    "ssl_cert_reqs": "cert_reqs",
    "ssl_ca_certs": "ca_certs",
    "ssl_ca_path": "ca_path",
    "ssl_certfile": "certfile",
    "ssl_keyfile": "keyfile",
    "ssl_check_hostname": "check_hostname",
    "ssl_password": "password",
    "ssl_ciphers": "ciphers",
}
_OTHER_OPTIONS: Final = {"db", "username", "password", "path", "host", "port", "connection_class"}


@dataclass(frozen=True, slots=True)
class Address:
    """One server: a unix socket, or a host and port, with or without TLS."""

    host: str = ""
    port: int = 0
    path: str = ""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """Without the password, for logs and errors."""
        if self.path:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.db}"


def parse_url(url: str) -> Address:
    """Read ``redis://``, ``rediss://``, ``valkey://``, ``valkeys://`` or ``unix://``.

    Args:
        url: ``redis://[user[:password]@]host[:port][/db][?ssl_ca_certs=…]`` or
            ``unix://[user[:password]@]/path[?db=0]``. TLS verifies the certificate and the host
            name unless ``ssl_cert_reqs=none`` or ``ssl_check_hostname=false`` say otherwise.

    Returns:
        The address.

    Raises:
        Refused: The URL has a part that is not understood; the message names it.
    """
    scheme, colon, rest = url.partition("://")
    known = _SCHEMES.get(scheme.lower())
    if not colon or known is None:
        schemes = ", ".join(f"{one}://" for one in _SCHEMES)
        raise Refused(f"a server URL begins with one of {schemes}, got {scheme!r}")
    from redis import connection as redis_connection  # 114 ms: only when a URL is read

    read: Callable[[str], dict[str, Any]] = redis_connection.parse_url

    try:
        path = urlsplit(url).path.strip("/")
        options = read(f"{known}://{rest}")
    except ValueError as error:
        raise Refused(f"the server URL is not understood: {error}") from None
    if known != "unix" and path and not path.isdecimal():
        raise Refused(f"the path of a server URL is a database number, got {path!r}")
    tls_options = {
        _TLS_OPTIONS[name]: options.pop(name) for name in list(options) if name in _TLS_OPTIONS
    }
    unknown = sorted(set(options) - _OTHER_OPTIONS)
    if unknown:
        raise Refused(f"unknown options in the server URL: {', '.join(unknown)}")
    if tls_options and known != "rediss":
        raise Refused("ssl_… options need a rediss:// URL")
    if options.get("db", 0) < 0:
        raise Refused(f"a database number is not negative, got {options['db']}")
    if known == "unix" and not options.get("path"):
        raise Refused("a unix:// URL needs the path of a socket")
    return Address(
        host="" if known == "unix" else options.get("host", "localhost"),
        port=0 if known == "unix" else options.get("port", 6379),
        path=options.get("path", ""),
        db=int(options.get("db", 0)),
        username=options.get("username", ""),
        password=options.get("password", ""),
        tls=_tls_context(tls_options) if known == "rediss" else None,
    )


def _tls_context(options: dict[str, Any]) -> ssl.SSLContext:
    from redis.asyncio.connection import RedisSSLContext

    check = str(options.pop("check_hostname", "true")).lower() not in ("false", "0", "no")
    verify = options.pop("cert_reqs", "required")
    try:
        context: ssl.SSLContext = RedisSSLContext(
            cert_reqs=verify, check_hostname=check, **options
        ).get()
    except Exception as error:
        raise Refused(f"the TLS options of the server URL do not work: {error}") from error
    return context


def tune(sock: socket.socket) -> None:
    """Send at once, and notice a peer that is gone behind an idle NAT (TCP only)."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
