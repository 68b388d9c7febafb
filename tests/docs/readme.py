"""Make the tables and outputs of docs/ again: `python tests/docs/readme.py`.

A test fails when they are stale.

A part is the text between `<!-- table: NAME -->` and `<!-- end -->`, or the block after `<!-- run: NAME -->` or
`<!-- file: NAME -->`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import demo_picture
from reference import commands_page, cures_table

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import KINDS, WAYS, Caller, table_cells
from kairos_mcp.core.instruction_files import INSTRUCTION_FILES
from kairos_mcp.core.limits import UNITS
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.server.prompts import PROMPTS
from kairos_mcp.server.resources import KINDS as RESOURCE_KINDS
from kairos_mcp.server.tools import TOOLS
from kairos_mcp.server.validation import flat_schema
from kairos_mcp.settings.explained import list_sections
from kairos_mcp.settings.folders import packaged_folder
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.telemetry import names
from kairos_mcp.tools import SkillFolders, builtin_tools

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
TOOLS_PAGE = DOCS / "tools.md"
COMMANDS_PAGE = DOCS / "commands.md"
DEMO_PICTURE = DOCS / "pictures" / "demo.svg"
EXAMPLES = ROOT / "examples"


TOOLS_INTRODUCTION = """# The tools of the server

Made by `python tests/docs/readme.py` from the argument classes (`kairos_mcp/server/arguments`); do not edit. A `?`
marks an optional argument; null is the same as leaving it out, except in `limits`. Unknown arguments are refused. If
an argument takes several types, the type column has the first, and the text the others. The listing that clients
receive has shorter texts.

A result has structured content, and a text with the same content. Its field `degraded` lists whatever was cut,
defaulted or done differently than asked. Its field `next` names the call to make now. An error is a result with
`isError` and `{code, message, hint, retryable, run_id?}`: decide by the code; the hint says what to do next.
"""


def tools_page() -> str:
    """The page `docs/tools.md`: each tool of the server with all of its arguments and their bounds."""
    sections = [TOOLS_INTRODUCTION]
    for tool in TOOLS:
        schema = flat_schema(tool.arguments)
        required = schema.get("required", [])
        rows = [
            f"| `{name}{'' if name in required else '?'}` | {_cell(_type_of(inner))} "
            f"| {_cell(inner.get('description', ''))} |"
            for name, inner in schema["properties"].items()
        ]
        table = "\n".join(["| argument | type | |", "|---|---|---|", *rows])
        sections.append(f"## `{tool.name}`\n{tool.description}\n\nEffect: {tool.effect}.\n\n{table}\n")
    return "\n".join(sections)


def _type_of(schema: JsonObject) -> str:
    """The type of an argument in words, with its bounds."""
    if "enum" in schema:
        return " | ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"array of {schema['items']['type']}s, up to {schema['maxItems']:,}"
    if "maxLength" in schema:
        return f"string, up to {schema['maxLength']:,} characters"
    if schema.get("maximum", 2**53) < 2**53:
        return f"{schema['type']}, {schema['minimum']:,} to {schema['maximum']:,}"
    if "properties" in schema:
        return f"object: {', '.join(schema['properties'])}"
    return str(schema["type"])


def loop_table() -> str:
    """The tools inside a loop, as a model is offered them."""
    with tempfile.TemporaryDirectory() as folder:
        tools = builtin_tools(Path(folder), read_bytes=1, skill_folders=SkillFolders([packaged_folder("skills")]))
        specs = [tool.spec for tool in tools if not tool.internal]
    rows = []
    for spec in specs:
        text = _cell(spec.description.partition("\nSkills:")[0])  # which skills there are differs by installation
        rows.append(f"| `{spec.name}({', '.join(spec.input_schema['properties'])})` | {spec.effect} | {text} |")
    return "\n".join(["| tool | effect | what it does |", "|---|---|---|", *rows])


RESERVED = {
    "count": "1 for each",
    "tokens": "the most that its tokens may come to",
    "time": "its timeout",
    "after": "nothing, since only its answer tells: the last one may go over, and no tool is called after it",
}


def limits_table() -> str:
    rows = [f"| `{unit.name}` | {unit.explained} | {RESERVED[unit.held]} |" for unit in UNITS.values()]
    return "\n".join(["| limit | of what | what a call reserves before it begins |", "|---|---|---|", *rows])


def decisions_table() -> str:
    """Who may decide what, from the table that every entry point asks."""
    found = {(kind, way): cell for kind, way, cell in table_cells()}
    rows = [f"| {kind} | {' | '.join(found[kind, way] for way in WAYS)} |" for kind in KINDS]
    return "\n".join(
        [f"| decision | {' | '.join(f'by {way}' for way in WAYS)} |", "|---" * (1 + len(WAYS)) + "|", *rows]
    )


def settings_table() -> str:
    """The settings with their types, defaults and descriptions, as they are declared."""
    rows = ["| setting | type | default | what it is |", "|---|---|---|---|"]
    for section in list_sections():
        if section.heading:
            rows.append(f"| `{section.heading}` | table | | {_cell(section.about)} |")
        for key in section.keys:
            default = f"`{key.default}`" if key.default else "none"
            kind = _setting_type(key.default or key.example)
            rows.append(f"| `{section.prefix}{key.name}` | {kind} | {default} | {_cell(key.about)} |")
    return "\n".join(rows)


def _setting_type(value: str) -> str:
    """The type of a setting in words, by its default or its example."""
    match tomllib.loads(f"value = {value}")["value"]:
        case bool():
            return "true or false"
        case int() | float():
            return "number"
        case list():
            return "list"
        case dict():
            return "table"
        case _:
            return "text"


def resources_table() -> str:
    """The resources, as a host mentions them."""
    rows = [
        f"| `{kind.uri}` | {_cell(kind.description)} | {kind.mime_type or 'by the file'} "
        f"| {'notified' if kind.topic else ''} |"
        for kind in RESOURCE_KINDS
    ]
    return "\n".join(["| resource | what it holds | as | changes |", "|---|---|---|---|", *rows])


def prompts_table() -> str:
    """The prompts, as a host shows them, with the values that complete."""
    rows = []
    for kind in PROMPTS:
        arguments = [
            f"`{each.name}{'' if each.is_required else '?'}`{f' ({each.names})' if each.names else ''}"
            for each in kind.arguments
        ]
        rows.append(f"| `{kind.name}` | {kind.description} | {', '.join(arguments)} | `{kind.tool}` |")
    return "\n".join(
        ["| command | what for | arguments (what completes them) | leads to |", "|---|---|---|---|", *rows]
    )


def instructions_table() -> str:
    """Who reads which files, linked to where that is documented."""
    rows = [
        f"| [{row.reader}]({row.documented.removeprefix('docs/')}) | {', '.join(f'`{glob}`' for glob in row.globs)} |"
        for row in INSTRUCTION_FILES
    ]
    return "\n".join(["| read by | files |", "|---|---|", *rows])


def spans_table() -> str:
    """The spans of a run, with the attributes that each may have."""
    rows = [
        f"| `{form.title}` | {form.kind} | {form.meaning} | {', '.join(f'`{each.name}`' for each in form.attributes)} |"
        for form in names.SPANS
    ]
    return "\n".join(["| span | kind | what it is | attributes |", "|---|---|---|---|", *rows])


def attributes_table() -> str:
    """The attributes of spans and the labels of metrics."""
    used = [each for form in names.SPANS for each in form.attributes] + [
        label for metric in names.METRICS for label in metric.labels
    ]
    rows = [
        f"| `{each.name}` | {each.unit and f'`{each.unit}`'} | {each.meaning} | {'yes' if each.is_content else ''} |"
        for each in dict.fromkeys(used)
    ]
    return "\n".join(["| attribute | unit | what it is | content |", "|---|---|---|---|", *rows])


def metrics_table() -> str:
    """The metrics, with their labels."""
    rows = [
        f"| `{metric.name}` | {metric.instrument} | `{metric.unit}` | {metric.meaning} "
        f"| {', '.join(f'`{label.name}`' for label in metric.labels)} |"
        for metric in names.METRICS
    ]
    return "\n".join(["| metric | instrument | unit | what it is | labels |", "|---|---|---|---|---|", *rows])


def demo_output() -> str:
    """The demo's real output, where nobody is at the terminal."""
    environ = os.environ | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "kairos_mcp", "demo"]
    made = subprocess.run(
        command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, timeout=120
    )
    (folder,) = re.findall(r"^/\S+/kairos-demo-\w+$", made.stdout, re.MULTILINE)
    shutil.rmtree(folder)
    output = made.stdout.replace(folder, "/tmp/kairos-demo").replace(Path(folder).name, "kairos-demo")
    output = output.replace(f"{sys.executable} -P -m kairos_mcp", "kairos-mcp")
    output = output.replace(str(Path(sys.executable).with_name("kairos-mcp")), "kairos-mcp")
    return f"```console\n$ kairos-mcp demo\n{output.strip()}\n```"


def mandate_output() -> str:
    """The mandate of docs/mandates.md, saved, run and approved on a small site, while a script stands in for the model.

    Of the calls that both commands show, those before the act are shown once.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        shutil.copytree(EXAMPLES / "site", root / "site")
        saved, ran = _run_command(root, "mandate", "save", "links.toml"), _run_command(root, "mandate", "run", "links")
        outputs = [saved, ran.replace("$ ", "$ KAIROS_SCRIPT=mandate.jsonl ", 1)]
        (waits,) = re.findall(r"kairos-mcp (approve) (\S+) (\S+)", outputs[-1])
        approved = _run_command(root, *waits).splitlines(keepends=True)
        outputs.append(
            "".join(line for line in approved if not re.match(r"  \+ (cycle-1 ( |observe|decide)|start )", line))
        )
    return "```console\n" + "\n".join(outputs) + "```"


def team_output() -> str:
    """A plan made and carried out on the small site, without the progress, which goes to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        shutil.copytree(EXAMPLES / "site", root / "site")
        run = partial(_run_command, root, script=EXAMPLES / "team.jsonl", errors=subprocess.DEVNULL)
        made = run("run", "--plan-only", "Check the docs.")
        (root / "plan.json").write_text(made.split("\n", 1)[1])
        carried_out = run("run", "--team", "--plan", "../plan.json", "Check the docs.")
    return f"```console\n$ kairos-mcp run --plan-only 'Check the docs.' > ../plan.json\n\n{carried_out}```"


def _run_command(root: Path, *words: str, script: Path | None = None, errors: int = subprocess.STDOUT) -> str:
    """A command as typed in the folder `site`, and its output."""
    script = script or root / "site" / "mandate.jsonl"
    environ = {**os.environ, "KAIROS_HOME": str(root / "home"), "KAIROS_SCRIPT": str(script)}
    done = subprocess.run(
        [sys.executable, "-m", "kairos_mcp", *words],
        cwd=root / "site",
        env=environ | {"PYTHONUNBUFFERED": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=errors,
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, 3), done.stdout
    output = done.stdout.replace(f"{sys.executable} -P -m kairos_mcp", "kairos-mcp").strip("\n")
    return f"$ {shlex.join(['kairos-mcp', *words])}\n{output}\n"


def caller_output() -> str:
    """What a run on the caller route hands out, without the parts that every result has."""

    async def start() -> dict[str, object]:
        with tempfile.TemporaryDirectory() as folder:
            workspace = Path(folder) / "hello"
            workspace.mkdir()
            flags = Flags(home=str(Path(folder) / "home"), workspaces=(str(workspace),))
            async with App.open(load_settings(flags, {}), via="readme") as app:
                run = await app.runs.start(PlannerRequest("What is in README.md?", tools=("read_file",)), Caller())
                await app.runs.wait([run.run_id], until="rest", wait_s=20, caller=Caller())
                return (await app.runs.report(run.run_id, Caller())).as_json()

    report = asyncio.run(start())
    item = report["waiting"][0]  # type: ignore[index]  # a list of objects
    item["system"] = item["system"].split(".")[0] + "…"
    item["tools"] = [{"name": tool["name"], "…": "…"} for tool in item["tools"]]
    shown = {key: report[key] for key in ("run_id", "status", "waiting", "next")}
    return "```json\n" + json.dumps(shown, indent=2, ensure_ascii=False) + "\n```"


def faults_table() -> str:
    """What became of jobs whose runtime was killed, as `python -m benchmarks.faults` wrote it last."""
    return (ROOT / "benchmarks" / "faults" / "report.md").read_text().strip()


def file_text(name: str) -> str:
    """A file of the repository, as a block."""
    return f"```toml\n{(ROOT / name).read_text()}```"


PARTS: dict[str, tuple[Path, Callable[[], str]]] = {
    "table: loop": (DOCS / "loop-tools.md", loop_table),
    "table: limits": (DOCS / "limits.md", limits_table),
    "table: faults": (DOCS / "compare.md", faults_table),
    "table: decisions": (DOCS / "approvals.md", decisions_table),
    "table: settings": (DOCS / "settings.md", settings_table),
    "table: resources": (DOCS / "hosts.md", resources_table),
    "table: prompts": (DOCS / "hosts.md", prompts_table),
    "table: instructions": (DOCS / "instructions.md", instructions_table),
    "table: spans": (DOCS / "telemetry.md", spans_table),
    "table: attributes": (DOCS / "telemetry.md", attributes_table),
    "table: metrics": (DOCS / "telemetry.md", metrics_table),
    "table: cures": (DOCS / "troubleshooting.md", cures_table),
    "run: demo": (DOCS / "install.md", demo_output),
    "run: caller": (DOCS / "calling.md", caller_output),
    "run: mandate": (DOCS / "mandates.md", mandate_output),
    "run: team": (DOCS / "teams.md", team_output),
    "file: examples/kairos.toml": (DOCS / "settings.md", partial(file_text, "examples/kairos.toml")),
    "file: examples/site/links.toml": (DOCS / "mandates.md", partial(file_text, "examples/site/links.toml")),
}


def part_of(page: str, name: str) -> re.Match[str]:
    """Find a part of a page; group 1 is its text."""
    body = r"(.*?)\n<!-- end -->" if name.startswith("table") else r"(```\w+\n.*?```)"
    found = re.search(rf"<!-- {name} -->\n{body}", page, re.DOTALL)
    assert found is not None, f"there is no part {name!r}"
    return found


def demo_transcript() -> str:
    """The demo's output as docs/install.md has it."""
    return part_of((DOCS / "install.md").read_text(), "run: demo")[1].removeprefix("```console\n").removesuffix("```")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write() -> None:
    TOOLS_PAGE.write_text(tools_page())
    COMMANDS_PAGE.write_text(commands_page())
    for name, (page, made) in PARTS.items():
        text = page.read_text()
        where = part_of(text, name)
        page.write_text(text[: where.start(1)] + made() + text[where.end(1) :])
    DEMO_PICTURE.write_text(demo_picture.draw(demo_transcript()))


if __name__ == "__main__":
    write()
