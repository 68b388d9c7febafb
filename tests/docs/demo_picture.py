"""Draw the demo as a terminal that plays: its transcript in docs/install.md becomes docs/pictures/demo.svg.

`python tests/docs/readme.py` does so after it has made the transcript. Where motion is unwanted, its end is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

COLUMNS, ROWS = 100, 28
CHAR_PX, LINE_PX, MARGIN_PX = 7.9, 18, 16
LINE_S, PAUSES_S = 0.22, {"kill -9": 1.6, "digest ": 2.0, "stopped:": 1.2}  # before the next line appears
COLOURS = (  # by how a line begins, the first that fits
    ("$ ", "typed"), ("1. ", "head"), ("2. ", "head"), ("3. ", "head"), ("  kill", "bad"), ("  - S", "bad"),
    ("  + S", "good"), ("  + ", "soft"), ("stopped:", "wait"), ("edit docs/", "wait"),
)  # fmt: skip


def draw(transcript: str) -> str:
    """Return the picture of a transcript; lines that are too long are folded as a terminal does it."""
    lines = [part for line in transcript.splitlines() for part in _fold(line)]
    times = list(_times(lines))
    total = times[-1] + 3
    width, height = round(COLUMNS * CHAR_PX + 2 * MARGIN_PX), ROWS * LINE_PX + 2 * MARGIN_PX
    shown = "\n".join(
        f'<text class="{_colour(line)}" y="{(row + 1) * LINE_PX}" style="animation-delay:{at:.2f}s"'
        f' xml:space="preserve">{escape(line)}</text>'
        for row, (line, at) in enumerate(zip(lines, times, strict=True))
        if line.strip()
    )
    stops = [(at, max(0, row + 1 - ROWS)) for row, at in enumerate(times)]
    frames = "".join(f"{100 * at / total:.2f}%{{transform:translateY(-{up * LINE_PX}px)}}" for at, up in stops if up)
    end = f"transform:translateY(-{max(0, len(lines) - ROWS) * LINE_PX}px)"
    style = (
        f"text{{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d6deeb;"
        f"opacity:0;animation:show .01s forwards}}.typed{{fill:#fff;font-weight:700}}.head{{fill:#82aaff}}"
        f".soft{{fill:#8b98a9}}.good{{fill:#7fd88f}}.bad{{fill:#ff8a80}}.wait{{fill:#f0c674}}"
        f"@keyframes show{{to{{opacity:1}}}}@keyframes roll{{0%{{transform:none}}{frames}100%{{{end}}}}}"
        f".roll{{animation:roll {total:.2f}s step-end forwards}}"
        f"@media (prefers-reduced-motion:reduce){{text{{opacity:1;animation:none}}.roll{{animation:none;{end}}}}}"
    )
    inner = f'x="{MARGIN_PX}" y="{MARGIN_PX}" width="{width - 2 * MARGIN_PX}" height="{ROWS * LINE_PX + 6}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="The demo">\n'
        f"<style>{style}</style>\n"
        f'<rect width="{width}" height="{height}" rx="10" fill="#10151f"/>\n'
        f'<svg {inner}><g class="roll">\n{shown}\n</g></svg>\n</svg>\n'
    )


def _fold(line: str) -> list[str]:
    return [line[at : at + COLUMNS] for at in range(0, len(line), COLUMNS)] or [""]


def _times(lines: list[str]) -> Iterator[float]:
    now = 0.3
    for line in lines:
        yield now
        now += LINE_S + next((pause for words, pause in PAUSES_S.items() if words in line), 0)


def _colour(line: str) -> str:
    return next((name for start, name in COLOURS if line.startswith(start)), "said")
