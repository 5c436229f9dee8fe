import asyncio
import signal
from contextlib import closing

import pytest

from flowright.core.errors import UserError
from flowright.core.net import (
    LOOPBACK,
    DrainingServer,
    allowed_hosts,
    check_port,
    is_loopback,
    listen,
    url_of,
)


def test_loopback_servers_answer_to_their_own_names_alone():
    assert all(is_loopback(host) for host in ("127.0.0.1", "::1", "localhost"))
    assert not is_loopback("0.0.0.0")
    assert allowed_hosts("::1") == LOOPBACK and allowed_hosts("0.0.0.0") == ("*",)
    assert url_of("::1", 80) == "http://[::1]:80" and url_of("a", 1) == "http://a:1"


def test_a_port_is_free_or_its_address_is_named():
    with closing(listen("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert port
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}: .*another port"):
            listen("127.0.0.1", port)
    for number in (-1, 65536):
        with pytest.raises(UserError, match="ports go to 65535"):
            check_port(number)


async def app(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


async def get(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    reply = await reader.read()
    writer.close()
    return reply


def test_the_first_signal_drains_with_an_open_port_and_the_second_does_not_wait():
    lines: list[str] = []
    waits: list[float] = []

    async def run() -> bytes:
        first, never = asyncio.Event(), asyncio.Event()

        async def drain(seconds: float) -> int:
            waits.append(seconds)
            first.set()
            if seconds:
                await never.wait()
            return len(waits)

        with closing(listen("127.0.0.1", 0)) as listener:
            server = DrainingServer(app, drain, 30.0, lines.append)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            port = listener.getsockname()[1]
            await get(port)  # it serves, and so handles signals
            signal.raise_signal(signal.SIGTERM)
            await first.wait()
            reply = await get(port)
            assert not server.should_exit
            signal.raise_signal(signal.SIGINT)
            await serving
        return reply

    reply = asyncio.run(run())
    assert reply.startswith(b"HTTP/1.1 200") and b"server:" not in reply
    assert waits == [30.0, 0.0]
    assert lines == [
        "SIGTERM: draining, 30 s at most",
        "SIGINT: draining, 0 s at most",
        "drained; requests cancelled: 2",
    ]
