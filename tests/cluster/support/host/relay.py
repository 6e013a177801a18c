"""Carries connections of this machine into a sandbox, whose own network nothing outside reaches."""

import asyncio
import socket
import threading

_CHUNK_BYTES = 65536


def start(listener: socket.socket) -> None:
    """Carry each connection that *listener* gets to its port on the 127.0.0.1 in here, until
    this process ends. *listener* listens in the network outside."""
    threading.Thread(target=lambda: asyncio.run(_serve(listener)), daemon=True).start()


async def _serve(listener: socket.socket) -> None:
    port = listener.getsockname()[1]

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:  # no program listens there now
            writer.close()
            return
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    server = await asyncio.start_server(carry, sock=listener)
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until either end closes, then close *writer*."""
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    except ConnectionError:
        pass  # the other end has gone, which is an end too
    finally:
        writer.close()
