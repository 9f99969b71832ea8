"""URLs, and the ways to a server: TCP, unix, TLS."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from fencepost import Client, Denied, Refused, Unavailable
from fencepost.wire.address import Address, parse_url
from support.faces import every_face
from support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.faces import Face
    from support.servers import ServerProcess


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://localhost", Address("localhost", 6379)),
        ("REDIS://localhost", Address("localhost", 6379)),
        ("valkey://h:1/2", Address("h", 1, db=2)),
        ("redis://h?db=3", Address("h", 6379, db=3)),
        ("redis://[::1]:7", Address("::1", 7)),
        ("redis://", Address("localhost", 6379)),
        ("redis://:p%40ss@h", Address("h", 6379, password="p@ss")),
        ("redis://ann:p@h:1/4", Address("h", 1, db=4, username="ann", password="p")),
        ("redis://ann@h", Address("h", 6379, username="ann")),
        ("unix:///run/s", Address(path="/run/s")),
        ("unix:///run/my%20s?db=5", Address(path="/run/my s", db=5)),
        ("unix://ann:p@/run/s", Address(path="/run/s", username="ann", password="p")),
    ],
)
def test_url_is_understood(url: str, address: Address) -> None:
    assert parse_url(url) == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "begins with one of"),
        ("localhost:6379", "begins with one of"),
        ("http://h", "begins with one of"),
        ("redis+cluster://h", "begins with one of"),
        ("redis:/h", "begins with one of"),
        ("redis://h:port", "not understood"),
        ("redis://h:99999", "not understood"),
        ("redis://h/name", "database number"),
        ("redis://h/-1", "database number"),
        ("redis://h/1/2", "database number"),
        ("redis://h?db=-1", "database number"),
        ("redis://h?db=x", "not understood.*db"),
        ("redis://h?colour=red", "unknown options.*colour"),
        ("redis://h?max_connections=5", "unknown options.*max_connections"),
        ("redis://h?ssl_ca_certs=/x", "need a rediss"),
        ("rediss://h?ssl_ca_certs=/nowhere", "do not work"),
        ("rediss://h?ssl_cert_reqs=maybe", "do not work"),
        ("unix://", "needs the path"),
    ],
)
def test_url_is_refused_with_the_part_that_is_wrong(url: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        parse_url(url)
    with pytest.raises(Refused, match=why):
        Client.from_url(url)


def test_tls_url_verifies_unless_told_otherwise() -> None:
    strict = parse_url("rediss://h").tls
    assert strict is not None
    assert strict.verify_mode == ssl.CERT_REQUIRED
    assert strict.check_hostname
    anybody = parse_url("valkeys://h?ssl_check_hostname=false").tls
    assert anybody is not None
    assert anybody.verify_mode == ssl.CERT_REQUIRED
    assert not anybody.check_hostname
    nothing = parse_url("rediss://h?ssl_cert_reqs=none").tls
    assert nothing is not None
    assert nothing.verify_mode == ssl.CERT_NONE


def test_password_is_never_shown() -> None:
    address = parse_url("redis://ann:hidden@h")
    assert "hidden" not in f"{address} {address!r}"
    with pytest.raises(Refused) as caught:
        parse_url("redis://ann:hidden@h:port")
    assert "hidden" not in str(caught.value)


# -- the ways


@every_face
async def test_tcp_and_unix_lead_to_the_same_server(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    for url in (own.url, own.url.replace("127.0.0.1", "localhost"), own.unix_url):
        assert await open_face(url).command("INCR", "n") > 0
    assert await open_face(own.unix_url).command("GET", "n") == b"3"


@every_face
@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1",
        "unix:///nowhere/s",
        "redis://no.such.host.invalid",
        "redis://" + "a" * 70,
    ],
)
async def test_nobody_there_is_unavailable_and_named(
    open_face: Callable[..., Face], url: str
) -> None:
    with pytest.raises(Unavailable, match=f"no server answers at {url[:20]}"):
        await open_face(url, budget=0.6).command("PING")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_proxy(server: ServerProcess, authority: trustme.CA) -> Iterator[Proxy]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with Proxy(server, tls=context) as proxy:
        yield proxy


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


@every_face
async def test_tls_carries_small_and_big_values(
    open_face: Callable[..., Face], tls_proxy: Proxy, ca_file: Path, namespace: str
) -> None:
    face = open_face(f"{tls_proxy.url}?ssl_ca_certs={ca_file}", budget=20)
    for size in (1, 1000, 1 << 20):
        await face.command("SET", namespace, b"x" * size)
        assert await face.command("GET", namespace) == b"x" * size
    tls_proxy.fault("reply", "GET", "cut")
    from fencepost._core import commands

    assert len(await face.run(commands.get(namespace)) or b"") == 1 << 20


@every_face
async def test_tls_refuses_a_certificate_of_somebody_else(
    open_face: Callable[..., Face], tls_proxy: Proxy, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    for url in (tls_proxy.url, f"{tls_proxy.url}?ssl_ca_certs={other}"):
        with pytest.raises(Denied, match=r"(?i)certificate"):
            await open_face(url, budget=60).command("PING")
    # The negative control: told not to look, it connects.
    assert await open_face(f"{tls_proxy.url}?ssl_cert_reqs=none").command("PING") == b"PONG"


@every_face
async def test_tls_refuses_another_host_name(
    open_face: Callable[..., Face], tls_proxy: Proxy, ca_file: Path
) -> None:
    url = f"{tls_proxy.url.replace('localhost', '127.0.0.1')}?ssl_ca_certs={ca_file}"
    with pytest.raises(Denied, match=r"(?i)certificate"):
        await open_face(url, budget=60).command("PING")
    face = open_face(f"{url}&ssl_check_hostname=false")
    assert await face.command("PING") == b"PONG"


@every_face
async def test_tls_to_a_server_without_it_is_unavailable(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    url = own.url.replace("redis://", "rediss://")
    with pytest.raises(Unavailable):
        await open_face(url, budget=0.6).command("PING")
