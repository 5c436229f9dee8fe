import asyncio
import signal
from contextlib import closing, suppress

import pytest
import uvicorn

from flowright.core.errors import UserError
from flowright.core.net import (
    LOOPBACK,
    BoundedHttp,
    DrainingServer,
    allowed_hosts,
    check_port,
    is_loopback,
    listen,
    quiet_server,
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
            signal.raise_signal(signal.SIGHUP)
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
        "SIGHUP: draining, 30 s at most",
        "SIGINT: draining, 0 s at most",
        "drained; requests cancelled: 2",
    ]


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"


async def with_server(protocol: type[BoundedHttp], use) -> None:
    async def app(scope, receive, send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})

    with closing(listen("127.0.0.1", 0)) as listener:
        settings = quiet_server(app)
        assert settings.http is BoundedHttp
        settings.http = protocol
        server = uvicorn.Server(settings)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        port = listener.getsockname()[1]
        try:
            async with asyncio.timeout(60):
                await use(port)
        finally:
            server.should_exit = True
            await serving


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_a_request_that_does_not_arrive_in_time_is_closed():
    class Quick(BoundedHttp):
        head_seconds = body_seconds = 0.1

    async def use(port: int) -> None:
        for begun in (b"", HEAD[:20], HEAD + b"\r\n{"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            await closed(writer)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):  # kept alive for longer than a head may take
            writer.write(HEAD + b"\r\n{12345678")
            assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.3)
        await closed(writer)

    await with_server(Quick, use)


async def test_held_connections_do_not_keep_others_out():
    class Few(BoundedHttp):
        most = 4
        grace_seconds = 0.05

    async def use(port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        for number, (_, writer) in enumerate(held):
            writer.write(HEAD if number % 2 else HEAD + b"\r\n{")
        ends = [asyncio.create_task(reader.read(1)) for reader, _ in held]
        while sum(task.done() for task in ends) < 8:
            await asyncio.sleep(0.01)
        assert (await get(port)).startswith(b"HTTP/1.1 200")
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        await asyncio.gather(*(closed(writer) for _, writer in held))

    await with_server(Few, use)
