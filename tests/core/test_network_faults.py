"""Faults of the network, named from real sockets on loopback."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from flowright.config.llm import LlmSection, ModelEntry
from flowright.core.network_faults import NO_TLS, TLS
from flowright.llm.client import ChatClient
from flowright.llm.transport import Connection, RequestError
from flowright.viewer.live import ask

PROXY = "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


async def fault(url: str) -> str:
    connection = Connection(url, None)
    try:
        with pytest.raises(RequestError) as caught:
            await connection.ask("/models", "sk-none", 5.0)
    finally:
        await connection.aclose()
    return caught.value.message.removeprefix(f"{url}: ")


async def _close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
    await writer.drain()
    writer.close()


def certificate(folder: Path, name: str) -> ssl.SSLContext:
    """A TLS server's context with a self-signed certificate for a host."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    made = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={name}"]
    command += ["-keyout", str(made[0]), "-out", str(made[1])]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made[1], made[0])
    return context


def port_of(server: asyncio.Server) -> int:
    return server.sockets[0].getsockname()[1]


async def test_an_unknown_host_is_named() -> None:
    for scheme in ("http", "https"):
        assert await fault(f"{scheme}://none.invalid/v1") == "no such host: none.invalid"
    assert ask("http://none.invalid/v1").trouble == "no such host: none.invalid"


async def test_certificates_and_mixed_up_protocols_are_named(tmp_path: Path) -> None:
    context = certificate(tmp_path, "localhost")
    async with (
        await asyncio.start_server(_close, "127.0.0.1", 0, ssl=context) as encrypted,
        await asyncio.start_server(_reply, "127.0.0.1", 0) as plain,
    ):
        at, plain_at = f"127.0.0.1:{port_of(encrypted)}/v1", f"127.0.0.1:{port_of(plain)}/v1"
        untrusted = await fault(f"https://{at}")
        assert untrusted.startswith("its certificate is not accepted: self-signed certificate; SSL")
        assert await fault(f"http://{at}") == TLS
        assert await fault(f"https://{plain_at}") == NO_TLS
        assert (await asyncio.to_thread(ask, f"https://{at}")).trouble == untrusted
        assert (await asyncio.to_thread(ask, f"http://{at}")).trouble == TLS
        assert (await asyncio.to_thread(ask, f"https://{plain_at}")).trouble == NO_TLS


async def test_no_attempt_is_repeated_that_settings_must_mend(tmp_path: Path) -> None:
    context = certificate(tmp_path, "localhost")
    async with await asyncio.start_server(_close, "127.0.0.1", 0, ssl=context) as server:
        entry = ModelEntry(base_url=f"http://127.0.0.1:{port_of(server)}/v1", model_name="m")
        client = ChatClient("big", entry, LlmSection())
        (line,) = await client.check()
        await client.aclose()
    assert line.endswith(f"cannot be reached ({TLS}); change base_url or the machine's settings")


async def test_a_proxy_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    async with await asyncio.start_server(_reply, "127.0.0.1", 0) as server:
        for scheme, answer in (
            ("http", "asks for a user and a password"),
            ("https", "answers 407 Proxy Authentication Required"),
        ):
            variable = f"{scheme.upper()}_PROXY"
            at = f"127.0.0.1:{port_of(server)}"
            monkeypatch.setenv(variable, f"http://me:secret@{at}")
            found = await fault(f"{scheme}://far.invalid/v1")
            assert found == f"the proxy {at} of {variable} {answer}"
            monkeypatch.setenv(variable, "http://me:secret@127.0.0.1:1")
            found = await fault(f"{scheme}://far.invalid/v1")
            assert found == f"the proxy 127.0.0.1:1 of {variable}: Connection refused"
            monkeypatch.setenv(variable, "proxy.invalid:3128")
            found = await fault(f"{scheme}://far.invalid/v1")
            assert found == f"no such host: the proxy proxy.invalid:3128 of {variable}"
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@127.0.0.1:1")
    trouble = ask("http://far.invalid/v1").trouble
    assert trouble == "the proxy 127.0.0.1:1 of HTTP_PROXY: Connection refused"
