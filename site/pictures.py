"""Draw the pictures of docs/concepts: `python site/pictures.py`. Each is one SVG, for light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
_STYLE = """
text { font: 15px system-ui, sans-serif; fill: #1b1f24; }
.small { font-size: 13px; fill: #57606a; }
.box { fill: #f6f8fa; stroke: #8c959f; }
.person { fill: #fff8e1; stroke: #b58105; }
.good { fill: #e6f6ea; stroke: #2c8a4b; }
.bad { fill: #fdecea; stroke: #c0392b; }
.line { stroke: #57606a; fill: none; stroke-width: 1.5; marker-end: url(#head); }
.head { fill: #57606a; }
.bar-held { fill: #e3b341; } .bar-spent { fill: #2c8a4b; } .bar-free { fill: #d0d7de; }
@media (prefers-color-scheme: dark) {
  .back { fill: #0d1117; } text { fill: #e6edf3; } .small { fill: #9da7b3; }
  .box { fill: #161b22; stroke: #6e7681; } .person { fill: #2e2510; stroke: #d29922; }
  .good { fill: #10271a; stroke: #3fb950; } .bad { fill: #30171a; stroke: #f85149; }
  .line { stroke: #9da7b3; } .head { fill: #9da7b3; } .bar-free { fill: #30363d; }
}
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A rounded box with up to three lines; the first is its name."""

    x: int
    y: int
    w: int
    lines: tuple[str, ...]
    kind: str = "box"

    @property
    def h(self) -> int:
        return 18 + 20 * len(self.lines)

    def draw(self) -> str:
        middle = self.x + self.w // 2
        texts = (
            f'<text x="{middle}" y="{self.y + 24 + 20 * row}" text-anchor="middle"'
            f' class="{"small" if row else "name"}">{escape(line)}</text>'
            for row, line in enumerate(self.lines)
        )
        shape = f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" width="{self.w}" height="{self.h}" rx="8"/>'
        return shape + "".join(texts)


def arrow(points: str, label: str = "", at: tuple[int, int] = (0, 0)) -> str:
    """A line with a head through points, as "10,10 50,10", and words at a place."""
    words = f'<text class="small" x="{at[0]}" y="{at[1]}" text-anchor="middle">{escape(label)}</text>' if label else ""
    return f'<polyline class="line" points="{points}"/>{words}'


def bar(y: int, name: str, spent: int, held: int, whole: int = 460) -> str:
    """An account as a bar: spent, reserved, free."""
    parts = (
        ("bar-spent", 180, spent),
        ("bar-held", 180 + spent, held),
        ("bar-free", 180 + spent + held, whole - spent - held),
    )
    rects = "".join(f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="22"/>' for kind, x, w in parts)
    return f'<text x="170" y="{y + 16}" text-anchor="end">{escape(name)}</text>{rects}'


def words(x: int, y: int, text: str, kind: str = "small") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


PICTURES: dict[str, tuple[str, int, list[Box | str]]] = {
    "run": (
        "A run: a goal, rounds of model and tool calls, each stored before the next, and an end with a reason",
        250,
        [
            Box(10, 60, 120, ("goal", "tools, limits")),
            Box(190, 60, 140, ("model call", "one a round")),
            Box(390, 60, 140, ("tool calls", "through the gate")),
            Box(590, 60, 120, ("end", "with a reason"), "good"),
            Box(190, 175, 340, ("the record", "every answer, before the next step begins"), "box"),
            arrow("130,89 186,89"),
            arrow("330,89 386,89", "asks for", (358, 80)),
            arrow("460,60 460,25 260,25 260,56", "results: the next round", (360, 18)),
            arrow("325,118 345,140 580,140 625,122", "no more calls, or a limit", (462, 158)),
            arrow("225,118 225,171"),
            arrow("410,118 410,171"),
        ],
    ),
    "limits": (
        "A limit: what a call may cost is reserved before it begins, and settled when its answer comes",
        250,
        [
            bar(20, "before the call", 150, 0),
            bar(60, "reserved", 150, 170),
            bar(100, "settled", 215, 0),
            bar(140, "the next: refused", 390, 0),
            '<rect class="line" x="570" y="138" width="120" height="26" stroke-dasharray="4 3"/>',
            words(180, 186, "spent"),
            '<rect class="bar-spent" x="218" y="176" width="14" height="12"/>',
            words(252, 186, "reserved"),
            '<rect class="bar-held" x="310" y="176" width="14" height="12"/>',
            words(344, 186, "free"),
            '<rect class="bar-free" x="373" y="176" width="14" height="12"/>',
            words(180, 214, "A call that needs more than is free does not begin: the model sums up instead,"),
            words(180, 234, "by a call that was set aside before the first round."),
        ],
    ),
    "approvals": (
        "An approval: the gate allows, denies or asks; a person decides about exactly what is shown",
        300,
        [
            Box(10, 110, 120, ("tool call", "with arguments")),
            Box(190, 110, 130, ("the gate", "rules, effect")),
            Box(400, 10, 140, ("runs at once", "reads, or a rule"), "good"),
            Box(400, 110, 140, ("waits", "for a person"), "person"),
            Box(400, 230, 140, ("denied", "the model is told"), "bad"),
            Box(590, 110, 120, ("a person", "sees the change"), "person"),
            arrow("130,139 186,139"),
            arrow("320,125 360,39 396,39", "allow", (318, 70)),
            arrow("320,139 396,139", "ask", (358, 131)),
            arrow("320,153 360,259 396,259", "deny", (318, 225)),
            arrow("540,139 586,139"),
            arrow("650,110 650,39 544,39", "approve", (685, 60)),
            arrow("650,168 650,259 544,259", "deny", (675, 225)),
        ],
    ),
    "stage": (
        "A stage: the run edits and runs programs on a private layer; a person decides once about one diff",
        270,
        [
            Box(10, 30, 200, ("the run", "edits, runs programs", "unasked")),
            Box(270, 30, 180, ("private layer", "over the workspace"), "box"),
            Box(510, 30, 200, ("your workspace", "unchanged meanwhile")),
            Box(270, 180, 180, ("one diff", "you decide once"), "person"),
            Box(510, 180, 200, ("applied at once,", "or not at all"), "good"),
            arrow("210,65 266,65", "writes", (238, 56)),
            arrow("510,59 454,59", "reads", (482, 50)),
            arrow("360,88 360,176", "the run ends", (405, 136)),
            arrow("450,209 506,209", "approve", (478, 200)),
            arrow("610,180 610,92"),
        ],
    ),
    "recovery": (
        "Recovery: after a crash another server rebuilds the run from its rows and decides about the call in between",
        330,
        [
            Box(10, 20, 150, ("server A", "stores each answer")),
            Box(240, 20, 150, ("killed", "in a call"), "bad"),
            Box(470, 20, 240, ("server B takes the run", "rebuilds it from its rows")),
            arrow("160,49 236,49"),
            arrow("390,49 466,49"),
            words(10, 128, "What becomes of the call that was under way:", "name"),
            Box(10, 150, 165, ("a model call", "asked again, charged", "at its bound"), "box"),
            Box(190, 150, 165, ("a call that reads", "made again"), "good"),
            Box(370, 150, 165, ("an edit", "looked up in the file:", "finished or undone"), "good"),
            Box(550, 150, 160, ("a command", "waits for your word"), "person"),
            words(
                10, 266, "Answers that were stored are never asked for again. A server that was only slow, and comes"
            ),
            words(10, 286, "back, is refused: each takeover raises the run's fence."),
        ],
    ),
}


def draw(name: str) -> str:
    """Return a picture as SVG."""
    title, height, parts = PICTURES[name]
    drawn = "\n".join(part.draw() if isinstance(part, Box) else part for part in parts)
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n"
        f'<defs>{head}<path class="head" d="M0,0 L8,4 L0,8 z"/></marker></defs>\n{drawn}\n</svg>\n'
    )


if __name__ == "__main__":
    for name in PICTURES:
        (FOLDER / f"concept-{name}.svg").write_text(draw(name), encoding="utf-8")
