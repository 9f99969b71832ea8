"""Who is asking: signed sessions, CSRF tokens, the access token, and where a request comes from."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from itsdangerous import BadData, URLSafeTimedSerializer

from fencepost.campus.problems import Problem
from fencepost.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.datastructures import Headers
    from starlette.requests import HTTPConnection
    from starlette.responses import Response

COOKIE = "campus"
SESSION_LIFE = 30 * 86_400


@dataclass(frozen=True)
class Session:
    """A visitor.

    Args:
        key: Random, new at each sign-in; the CSRF token is made from it.
        name: The chosen name; None before sign-in.
        proof: What shows that the access token was given once; '' if it was not.
        fresh: Whether the visitor's browser does not have it yet.
    """

    key: str
    name: str | None = None
    proof: str = ""
    fresh: bool = False


class Sessions:
    """Sessions live in a signed cookie, so that any process of this campus can read them.

    Args:
        secret: The signing key.
        token: The access token that sessions must have seen, or None.
    """

    def __init__(self, secret: str, token: str | None = None) -> None:
        self._secret = secret.encode()
        self._token = token
        self._signer = URLSafeTimedSerializer(secret, salt="campus.session")

    def read(self, request: HTTPConnection) -> Session:
        """The visitor's session; a fresh one if there is none that we signed."""
        try:
            held = self._signer.loads(request.cookies.get(COOKIE, ""), max_age=SESSION_LIFE)
            return Session(key=str(held["k"]), name=held["n"], proof=str(held["p"]))
        except (BadData, KeyError, TypeError):
            return Session(key=secrets.token_urlsafe(16), fresh=True)

    def write(self, request: HTTPConnection, response: Response, session: Session) -> None:
        """Give the browser its cookie; over HTTPS it will travel over HTTPS only."""
        held = {"k": session.key, "n": session.name, "p": session.proof}
        response.set_cookie(
            COOKIE,
            self._signer.dumps(held),
            max_age=SESSION_LIFE,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
        )

    def signed_in(self, name: str, proof: str = "") -> Session:
        """A new session, so that nobody who knew the old one shares it."""
        return Session(key=secrets.token_urlsafe(16), name=name, proof=proof)

    def signed_out(self, session: Session) -> Session:
        return replace(session, key=secrets.token_urlsafe(16), name=None)

    def csrf(self, session: Session) -> str:
        """The token that forms of this session carry."""
        return self._mac("csrf", session.key)

    def check_csrf(self, session: Session, token: str) -> None:
        """Raises Problem (403) unless the token is the session's."""
        if session.fresh or not same(token, self.csrf(session)):
            raise Problem(
                "forbidden", "The form is too old, or it was not made here. Nothing was changed."
            )

    def proof(self, token: str) -> str | None:
        """What a session keeps of the right access token; None for a wrong one."""
        if self._token is None:
            return ""
        return self._mac("token", self._token) if same(token, self._token) else None

    def trusted(self, session: Session) -> bool:
        """Whether the visitor may see pages; a changed access token ends old sessions."""
        return self._token is None or same(session.proof, self._mac("token", self._token))

    def check_bearer(self, headers: Headers) -> None:
        """Raises Problem (401) unless the request carries the access token."""
        if self._token is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not same(given.strip(), self._token):
            raise Problem(
                "unauthorized",
                "The access token is missing or wrong.",
                headers={"WWW-Authenticate": 'Bearer realm="campus"'},
            )

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def same(given: str, right: str) -> bool:
    """Whether two texts are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode(), right.encode())


def check_source(headers: Headers) -> None:
    """Raises Problem (403) if another site made the browser send this unsafe request.

    Browsers say so in Sec-Fetch-Site, older ones in Origin; programs send neither.
    """
    site = headers.get("sec-fetch-site", "same-origin")
    origin = headers.get("origin")
    if site not in ("same-origin", "none") or (
        origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    ):
        raise Problem("forbidden", "Another site sent this request. Nothing was changed.")


def load_secret(path: Path) -> str:
    """The signing key kept at ``path``, mode 0600; made once, whoever of several is first."""
    with contextlib.suppress(FileNotFoundError):
        return _read_secret(path)
    mine = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with open(os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(32))
        file.flush()
        os.fsync(file.fileno())
    try:
        # link, not rename: it refuses where another process has put its own
        with contextlib.suppress(FileExistsError):
            os.link(mine, path)
    finally:
        mine.unlink()
    return _read_secret(path)


def _read_secret(path: Path) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise Refused(
                f"{path} can be read by others: chmod 600 it, or delete it (signs all out)"
            )
        secret = file.read().strip()
    if len(secret) < 32:
        raise Refused(f"{path} is damaged: delete it (signs everybody out)")
    return secret
