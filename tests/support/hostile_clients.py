"""Clients that hurt: they send nonsense or half of something, drip, do not read, or go away while they are answered."""

from __future__ import annotations

import json
import random
import socket
import time

from support.http_server import META, MODERN, Site, call_body


def misbehaves(site: Site, luck: random.Random, until: float) -> None:
    """A client that sends half of something, nonsense, or goes away while it is answered."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"_meta": META}}).encode()
    names = ("MCP-Method: tools/call", "MCP-Name: run_status")
    whole = site.head(*names) + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    while time.monotonic() < until:
        with site.connect() as connection:
            match luck.randrange(4):
                case 0:
                    connection.sendall(whole[: luck.randrange(len(whole))])
                case 1:
                    connection.sendall(luck.randbytes(200))
                case 2:
                    connection.sendall(whole)
                case _:
                    connection.sendall(site.head(f"MCP-Protocol-Version: {MODERN}") + b"Content-Length: 2\r\n\r\n{]")
                    connection.recv(100)
        time.sleep(0.01)


def drips(site: Site, until: float) -> None:
    """A client that sends a body byte by byte, for as long as it is let."""
    body = call_body("run_status", {})
    head = site.head("MCP-Method: tools/call", "MCP-Name: run_status") + f"Content-Length: {len(body)}\r\n\r\n".encode()
    while time.monotonic() < until:
        with site.connect() as connection:
            connection.sendall(head)
            try:
                for each in body:
                    connection.sendall(bytes([each]))
                    time.sleep(0.05)
                    if time.monotonic() >= until:
                        break
            except OSError:
                continue  # the server has given it up


def never_reads(site: Site, until: float) -> None:
    """A client that asks for the list of tools again and again on one connection, and reads no answer."""
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}).encode()
    whole = site.head("MCP-Method: tools/list") + f"Content-Length: {len(request)}\r\n\r\n".encode() + request
    while time.monotonic() < until:
        with site.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(0.2)
            while time.monotonic() < until:
                try:
                    connection.sendall(whole)
                except TimeoutError:
                    continue  # what the kernel keeps is full
                except OSError:
                    break


def vanishes(site: Site, until: float) -> None:
    """A client that starts a run that waits for it, and is gone before it is answered."""
    number = 0
    while time.monotonic() < until:
        number += 1
        body = call_body("planner_run", {"goal": f"gone {number}", "route": "caller", "wait_s": 5})
        names = ("MCP-Method: tools/call", "MCP-Name: planner_run")
        with site.connect() as connection:
            connection.sendall(site.head(*names) + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            time.sleep(0.2)
