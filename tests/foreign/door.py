"""A door out of a network namespace: a port of its loopback that leads to a socket file, and nowhere else.

As a program: open it, and run a command behind it."""

from __future__ import annotations

import asyncio
import sys
from asyncio import StreamReader, StreamWriter
from pathlib import Path

DOOR_PORT = 18078  # in a namespace of our own
CHUNK = 65536


def pass_door(door: Path) -> list[str]:
    """What comes before a command that is to run behind this door."""
    return [sys.executable, __file__, str(door)]


async def _run_behind(door: str, *command: str) -> int:
    async def lead_out(reader: StreamReader, writer: StreamWriter) -> None:
        outside, to_outside = await asyncio.open_unix_connection(door)
        await asyncio.gather(_carry(reader, to_outside), _carry(outside, writer))

    async with await asyncio.start_server(lead_out, "127.0.0.1", DOOR_PORT):
        client = await asyncio.create_subprocess_exec(*command)
        return await client.wait()


async def _carry(reader: StreamReader, writer: StreamWriter) -> None:
    """Carry bytes until either side has gone."""
    try:
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(_run_behind(*sys.argv[1:])))
