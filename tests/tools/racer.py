"""A program that writes and moves files of a workspace while a test edits them: `racer.py swap|away|write FOLDER`.

`swap` and `away` go on until a line comes in: the folder `flip` is at one moment there, at the next a link to the
outside, or has been moved outside. `write` takes a line `ROUND WAY DELAY` at a time, waits so many microseconds,
changes `f` and says `done`.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable

from kairos_mcp.tools.files.safe_open import EXCHANGE, find_renameat2


def swap(root: str) -> None:
    rename = find_renameat2()
    assert rename is not None
    workspace = os.open(f"{root}/W", os.O_RDONLY)
    _again_and_again(lambda: [rename(workspace, "flip", "link", EXCHANGE) for _ in range(2)])


def away(root: str) -> None:
    flip, folder, link, outside = (f"{root}/{name}" for name in ("W/flip", "W/folder", "W/link", "outside/flip"))
    moves = [(flip, folder), (link, flip), (flip, link), (folder, flip), (flip, outside), (outside, flip)]
    _again_and_again(lambda: [os.rename(old, new) for old, new in moves])


def _again_and_again(act: Callable[[], object]) -> None:
    rounds = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        act()
        time.sleep(rounds % 7 * 1e-4)  # else it would never be there long enough to be written at all
        rounds += 1
    print(rounds, flush=True)


def write(root: str) -> None:
    f, new = f"{root}/W/f", f"{root}/W/new"
    for line in sys.stdin:
        number, way, delay = line.split()
        text = f"theirs {number} base\n".encode()
        end = time.perf_counter() + int(delay) / 1e6
        while time.perf_counter() < end:
            pass
        match way:
            case "rename":
                with open(new, "wb") as file:
                    file.write(text)
                os.rename(new, f)
            case "twice":
                for again in (b"first\n", text):
                    with open(new, "wb") as file:
                        file.write(again)
                    os.rename(new, f)
            case "place":  # as long as what it replaces, so that it needs no other act
                fd = os.open(f, os.O_WRONLY)
                time.sleep(0.0005)  # a moment in which it is open and not yet written
                os.pwrite(fd, text, 0)
                os.close(fd)
            case _:
                fd = os.open(f, os.O_WRONLY | os.O_TRUNC)
                os.write(fd, text)
                os.close(fd)
        print("done", flush=True)


if __name__ == "__main__":
    {"swap": swap, "away": away, "write": write}[sys.argv[1]](sys.argv[2])
