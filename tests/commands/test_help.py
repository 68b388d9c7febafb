"""The command line's help is a snapshot; and `serve` does not pay for what only the other commands need."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands.conftest import Shell
from support.command_words import all_commands
from support.provider_server import chat, sends, standin
from support.script_lines import says

from kairos_mcp.cli import command_table as known
from kairos_mcp.cli.command_table import EXAMPLES, GROUP_EXAMPLES, MEANT, SECTIONS
from kairos_mcp.cli.main import run_command
from kairos_mcp.cli.own_start import find_distribution
from kairos_mcp.cli.serve import plain_serve
from kairos_mcp.settings.settings import Flags

SNAPSHOT = Path(__file__).parent / "__snapshots__" / "help.txt"
COMMANDS = [
    *known.COMMANDS,
    *known.GROUPS,
    *(f"{group} {name}" for group, (_, commands) in known.GROUPS.items() for name in commands),
]
HEAVY = {"typer", "click", "rich", "jsonschema", "re2", "platformdirs"}


# One process for all commands: a start for each takes half a minute.
EACH_IN_TURN = """
import contextlib, io, json, sys
from kairos_mcp.cli.main import run_command
answers = []
for words in json.loads(sys.argv[1]):
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(words)
    answers.append((code, *(stream.buffer.getvalue().decode() for stream in (out, err))))
print(json.dumps(answers))
"""


def test_the_help_is_the_snapshot(kairos) -> None:
    asked = [[*command.split(), "--help"] for command in ("", *COMMANDS)]
    program = [sys.executable, "-c", EACH_IN_TURN, json.dumps(asked)]
    done = subprocess.run(program, env=kairos.environ(), capture_output=True, text=True, check=True)
    parts = []
    for words, (code, out, err) in zip(asked, json.loads(done.stdout), strict=True):
        assert (code, err) == (0, ""), words
        parts.append(f"$ {' '.join(['kairos-mcp', *words])}\n{out}")
    text = "\n".join(parts)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert text == SNAPSHOT.read_text(encoding="utf-8")
    assert kairos("--help").out == json.loads(done.stdout)[0][1]  # and so it is in a process of its own


def test_the_help_has_each_command_once_and_cuts_no_summary() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted([*known.COMMANDS, *known.GROUPS])
    assert EXAMPLES.keys() <= known.COMMANDS.keys()
    listings = [part for part in SNAPSHOT.read_text(encoding="utf-8").split("\n$ ") if "COMMAND [ARGS]" in part]
    assert len(listings) == 1 + len(known.GROUPS)
    lines = [line for part in listings for line in part.splitlines() if not line.startswith("Usage:")]
    assert not [line for line in lines if line.endswith("...")]


@pytest.mark.parametrize("words", [words for examples in EXAMPLES.values() for words, _ in examples])
def test_each_example_is_taken_as_it_stands(words: str) -> None:
    parsed = all_commands()
    name, *rest = shlex.split(words)
    assert parsed.commands[name].make_context(name, rest).args == []  # nothing was left over


@pytest.mark.parametrize(
    "words", [*(words for each in GROUP_EXAMPLES.values() for words, _ in each), *(f"{words} x" for words in MEANT)]
)
def test_each_example_of_a_group_is_taken_and_no_name_that_is_known_from_elsewhere_is_a_command(words: str) -> None:
    parsed = all_commands()
    name, *rest = shlex.split(words)
    group = parsed.commands.get(name)
    if words.removesuffix(" x") in MEANT:
        assert rest[0] not in group.commands if group is not None else name not in parsed.commands
    else:
        assert group.commands[rest[0]].make_context(rest[0], rest[1:]).args == []


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["stop", "last"], " cancel RUN`?"),
        (["mandate", "resume", "x"], " mandate run ID --resume`?"),
        (["run", "Explain", "the", "build"], "Put the goal and each pattern in quotes: "),
        (["run", "--limit", "round=3", "x"], "Did you mean rounds?"),
        (["run", "--limit", "rounds=many", "x"], "The limit rounds: it has to be a whole number."),
        (["runs", "-n", "0"], "it has to be at least 1."),
    ],
)
def test_a_usual_mistake_is_answered_by_what_was_meant(
    capsys: pytest.CaptureFixture[str], words: list[str], meant: str
) -> None:
    assert run_command(words) == 2
    assert meant in capsys.readouterr().err


def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["help", "runs"]) == 0
    assert "kairos-mcp runs -n 30 --all" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("shwo",),
        ("runs", "--bogus"),
        ("show",),
        ("runs", "-n", "x"),
        ("show", "nope"),
        ("mandate", "show", "nope"),
        ("rules", "remove", "nope"),
        ("run", "--route", "x", "Look."),
    ],
)
def test_a_wrong_word_and_an_unknown_name_are_one_line_of_one_form_and_exit_with_2(
    kairos: Shell, words: tuple[str, ...]
) -> None:
    said = kairos(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


def test_the_version_is_that_of_the_distribution(kairos) -> None:
    distribution = find_distribution()
    assert distribution is not None
    said = kairos("--version")
    assert (said.code, said.out, said.err) == (0, f"kairos-mcp {distribution.version}\n", "")


@pytest.mark.parametrize("words", [["bogus"], ["serve", "--bogus"], ["serve", "--home"], ["run", "--limit"], ["show"]])
def test_a_wrong_use_exits_with_2_and_says_nothing_on_stdout(kairos, words: list[str]) -> None:
    said = kairos(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("serve", Flags()),
        ("serve --home a --workspace b --workspace=c", Flags(home="a", workspaces=("b", "c"))),
        ("serve --config=k.toml --tools lean", Flags(config="k.toml", tools="lean")),
        ("serve --home a --home b", Flags(home="b")),
        ("serve --help", None),
        ("serve --home", None),
        ("serve --home --tools", None),
        ("serve --home=", None),
        ("serve here", None),
        ("serve --transport http", None),
        ("run", None),
        ("", None),
    ],
)
def test_only_a_serve_in_its_plain_form_is_read_without_typer(words: str, flags: Flags | None) -> None:
    assert plain_serve(words.split()) == flags


def test_serve_imports_nothing_heavy_before_the_server_module(tmp_path: Path) -> None:
    code = (
        "import sys; from kairos_mcp.cli.serve import plain_serve\n"
        "from kairos_mcp.settings.load import load_settings\n"
        f"load_settings(plain_serve(['serve', '--home', {str(tmp_path)!r}]), {{}})\n"
        "print(*sorted(name.partition('.')[0] for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_the_server_module_imports_nothing_heavy_either() -> None:
    code = "import sys; import kairos_mcp.server.stdio\nprint(*sorted(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"typer", "rich", "re2"} & set(done.stdout.split())


PROVIDERS = {"mcp", "mcp_types", "pydantic_ai", "openai", "anthropic", "genai_prices", "httpx", "httpx2"}
LOADED = """
import sys
from kairos_mcp.cli import main
sys.argv = ["kairos-mcp", *sys.argv[1:]]
try:
    main.main()
finally:
    with open(os.environ["LOADED"], "w", encoding="utf-8") as file:
        print(*sorted(sys.modules), file=file)
"""


def loaded_by(kairos: Shell, *words: str, **more: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    file = kairos.folder / "modules.txt"
    environ = kairos.environ(LOADED=str(file), **more)
    program = [sys.executable, "-c", f"import os\n{LOADED}", *words]
    subprocess.run(program, env=environ, cwd=kairos.folder, check=True, capture_output=True, timeout=60)
    return set(file.read_text(encoding="utf-8").split())


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_the_version_is_printed_by_a_program_that_imports_next_to_nothing(kairos: Shell) -> None:
    modules = loaded_by(kairos, "--version")
    ours = {name for name in modules if name.startswith("kairos_mcp")}
    assert ours == {"kairos_mcp", "kairos_mcp.cli", "kairos_mcp.cli.main", "kairos_mcp.cli.exit_codes"}
    assert not packages(modules) & {*PROVIDERS, *HEAVY, "pydantic", "pydantic_core", "asyncio", "logging"}


def test_a_command_imports_no_other_command_and_no_library_of_a_protocol_or_provider(kairos: Shell) -> None:
    modules = loaded_by(kairos, "runs")
    assert not packages(modules) & {*PROVIDERS, "rich", "starlette", "uvicorn", "jsonschema"}
    assert not {f"kairos_mcp.cli.{name}" for name in ("doctor", "install", "mandates", "tools", "run")} & modules
    ours = {name.split(".")[1] for name in modules if name.startswith("kairos_mcp.")}
    assert not {"execution", "tools", "gate", "history"} & ours
    moving = {"app.run_factory", "app.run_pool", "app.start", "flows.planner", "core.redaction", "models.answers"}
    assert not {f"kairos_mcp.{name}" for name in moving} & modules


def test_the_help_of_a_command_imports_nothing_of_what_it_does(kairos: Shell) -> None:
    modules = loaded_by(kairos, "doctor", "--help")
    assert not packages(modules) & {*PROVIDERS, "rich", "apsw", "asyncio"}
    assert not [name for name in modules if name.startswith(("kairos_mcp.tools", "kairos_mcp.store", "kairos_mcp.app"))]


async def test_a_run_imports_the_library_of_its_own_model_alone(kairos: Shell) -> None:
    script = kairos.folder / "script.jsonl"
    script.write_text(json.dumps(says("Done.")) + "\n", encoding="utf-8")
    assert not packages(loaded_by(kairos, "run", "Say it.", KAIROS_SCRIPT=str(script))) & PROVIDERS
    async with standin() as provider:
        provider.will(sends(chat("Done.")))
        own = {"KAIROS_MODEL": "openai:m", "KAIROS_BASE_URL": provider.openai}
        loaded = packages(await asyncio.to_thread(loaded_by, kairos, "run", "Say it again.", **own))
    assert "openai" in loaded
    assert not loaded & {"anthropic", "mcp", "mcp_types", "starlette", "uvicorn"}


def test_the_garbage_collector_passes_over_what_a_server_has_loaded(tmp_path: Path) -> None:
    program = (
        "import gc; from kairos_mcp.cli import serve\n"
        f"serve.serve_stdio(serve.plain_serve(['serve', '--home', {str(tmp_path)!r}]))\n"
        "assert gc.get_freeze_count() > 10_000, gc.get_freeze_count()\n"
    )
    subprocess.run([sys.executable, "-c", program], stdin=subprocess.DEVNULL, check=True, timeout=60)
