"""`python -m benchmarks [NAME] [--rounds 100 ...]`: one JSON object a benchmark, every figure a key."""

from __future__ import annotations

import argparse
import inspect
import json
from importlib import import_module

NAMES = (
    *("rounds", "growth", "syncs", "abreast", "stored", "parked", "resumed", "started", "called", "crowded"),
    *("counted", "lengths", "asked", "transports", "requests", "team", "shown"),
)
OPT_IN = ("peers", "page", "workers", "sizing", "agentdojo", "bfcl", "staged")
"""Install packages, drive a browser, or need a PostgreSQL server or a sandbox."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name", nargs="?", choices=(*NAMES, *OPT_IN), help=f"if none is named, all but {', '.join(OPT_IN)}"
    )
    named, rest = parser.parse_known_args()
    for name in [named.name] if named.name else NAMES:
        figures = import_module(f"benchmarks.{name}").figures
        sizes = argparse.ArgumentParser(prog=f"python -m benchmarks {name}")
        for size in inspect.signature(figures).parameters.values():
            sizes.add_argument(f"--{size.name}", type=int, default=size.default)
        measured = figures(**vars(sizes.parse_args(rest)))
        print(
            json.dumps({key: float(f"{value:.3g}") for key, value in measured.items()} | {"benchmark": name}),
            flush=True,
        )


if __name__ == "__main__":
    main()
