"""A socket before that of a PostgreSQL server, which can cut a connection at its next commit: before the server is sent
it, or before its reply comes back."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

NAME = ".s.PGSQL.5432"


class CutSocket:
    """Stands between; `cut_at_commit` is taken back when it has happened, at the commit after `pass_by` others. `cuts`:
    how often that was."""

    def __init__(self, folder: Path, server: Path) -> None:
        folder.mkdir()
        self.folder, self._server = folder, server / NAME
        self.cut_at_commit: Literal["before", "after"] | None = None
        self.pass_by = self.cuts = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / NAME))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                upstream = socket.socket(socket.AF_UNIX)
                upstream.connect(str(self._server))
                threading.Thread(target=self._carry_back, args=(upstream, client), daemon=True).start()
                threading.Thread(target=self._carry, args=(client, upstream), daemon=True).start()

    def _carry(self, client: socket.socket, upstream: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                is_commit = b"commit\0" in data and self.cut_at_commit is not None
                if is_commit and self.pass_by:
                    self.pass_by -= 1
                elif is_commit:
                    cut, self.cut_at_commit = self.cut_at_commit, None
                    self.cuts += 1
                    client.shutdown(socket.SHUT_RDWR)  # nothing goes back from here on
                    if cut == "after":
                        upstream.sendall(data)
                    break
                upstream.sendall(data)
        with suppress(OSError):
            upstream.shutdown(socket.SHUT_WR)

    def _carry_back(self, upstream: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := upstream.recv(65536):
                client.sendall(data)
        for each in (upstream, client):
            with suppress(OSError):
                each.close()
