"""What `doctor` tries: interpreters and servers are started, and the provider is asked one small question."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_mcp.cli.doctor_checks import Finding
from kairos_mcp.cli.session import PERSON, with_app
from kairos_mcp.core.decision_rights import VIA_DOCTOR
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.outcomes import END_STATUSES
from kairos_mcp.core.routes import PROVIDER
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.text import count_of
from kairos_mcp.settings.masked_servers import mask_address, mask_command
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.tools.mcp_servers.definition import OLDER_TRANSPORT
from kairos_mcp.tools.mcp_servers.network_variables import list_withheld_proxies

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.core.steps import Failure
    from kairos_mcp.tools.mcp_servers.source import ServerTrial
    from kairos_mcp.views.run_report import RunReport

TRY_S = 20.0
PROVIDER_TRY_S = 60.0  # a model on this machine may have to be loaded first
_LOADERS = ("npx", "uvx", "pipx", "bunx", "pnpx")  # programs that fetch what they start
SERVERS_TRY_S = 45.0  # a first start by npx or uvx downloads
STDERR_LINES = 5
_UNTRUSTED = re.compile(
    r"SELF_SIGNED_CERT|UNABLE_TO_(?:GET|VERIFY)\w+|CERT_UNTRUSTED|CERTIFICATE_VERIFY_FAILED|UnknownIssuer"
)
"""How Node, Python and uv say that they don't know who signed a certificate."""
_UNWRITABLE = re.compile(
    r"\b(?:EROFS|ENOENT|EACCES)\b|Read-only file system|No such file or directory|Permission denied"
)
_BRIDGE = (
    'If it speaks the older HTTP+SSE alone, let a program translate; in place of url: command = "npx", args = '
    '["-y", "mcp-remote", {}, "--transport", "sse-only"], env = {{ MCP_REMOTE_CONFIG_DIR = "/tmp/mcp-remote" }}. '
)
_DOCTOR = replace(PERSON, via=VIA_DOCTOR)
_INTERPRETERS = (
    (".venv/bin/python", (".venv/bin/python", "--version")),
    ("node_modules/.bin", ("node", "--version")),
    ("rust-toolchain", ("cargo", "--version")),
    ("rust-toolchain.toml", ("cargo", "--version")),
)
"""What in a workspace says that it needs an interpreter, and the command that tries it."""


def check_interpreters(settings: Settings) -> Iterator[Finding]:
    """Try the interpreters that each workspace needs, as run_command starts them."""
    if settings.commands == "off":
        return
    for folder in settings.workspaces:
        tried = set[tuple[str, ...]]()
        for name, argv in _INTERPRETERS:
            if argv not in tried and os.path.lexists(folder / name):
                tried.add(argv)
                yield _try_interpreter(settings, folder, name, list(argv))


def check_stages(settings: Settings) -> Iterator[Finding]:
    """Try whether runs in each workspace can work in a stage."""
    from kairos_mcp.app.stages import find_way

    for folder in settings.workspaces if settings.home.is_dir() else ():  # nothing is made for a look
        way = find_way(settings, folder)
        cure = "docs/stage.md says what one needs; stage = false takes this note away."
        if way.problem is None and way.no_layer is None:
            yield Finding("stage", "ok", f"runs in {folder} can have one")
        elif settings.stage is False:
            found = f"can have none: {way.problem}" if way.problem else f"would work in a copy of it: {way.no_layer}"
            yield Finding("stage", "ok", f"the setting stage is false; runs in {folder} {found}")
        elif way.problem is not None:
            yield Finding("stage", "note", f"runs in {folder} can have none: {way.problem}", cure)
        else:
            yield Finding("stage", "note", f"runs in {folder} work in a copy of it: {way.no_layer}", cure)


def check_servers(settings: Settings) -> Iterator[Finding]:
    """Start each approved MCP server, configured or registered; of one that does not list its tools say why."""

    async def try_servers(app: App) -> list[ServerTrial]:
        return await app.tools.try_servers(SERVERS_TRY_S)

    by_name = {server.name: server for server in settings.servers}
    try:
        trials = with_app(settings, try_servers)
    except KairosError:
        return  # the store can't be read, which is a finding of its own
    for trial in trials:
        if trial.problem is None:
            yield Finding("servers", "ok", f"{trial.name} lists {count_of(trial.tools, 'tool')}")
            for note in trial.notes:
                yield Finding(
                    "servers", "note", note, "Report it to the server's maintainers; Kairos uses the rest of it."
                )
            continue
        last = [line.strip() for line in trial.stderr.splitlines() if line.strip()][-STDERR_LINES:]
        is_told = bool(last) and "\n".join(last) in trial.problem
        wrote = "" if is_told else f" It wrote: {' | '.join(last)}" if last else " It wrote nothing to stderr."
        cure = _cure_server(trial, by_name.get(trial.name))
        yield Finding("servers", "note", f"{trial.problem}{wrote}", cure)


def _cure_server(trial: ServerTrial, server: ServerSetting | None) -> str:
    """Return what to do about a server that does not list its tools; `server`: its settings, if it is configured."""
    if trial.opens is not None:
        return f"Let programs and servers in a sandbox read it: {trial.opens} in kairos.toml."
    if server is None:
        return f"`kairos-mcp tools show {trial.name}` shows what is started; remove it if nobody needs it."
    if not server.command:
        address = mask_address(server.url or "")
        bridge = _BRIDGE.format(json.dumps(address)) if OLDER_TRANSPORT in (trial.problem or "") else ""
        return f"{bridge}Check whether {address} answers; then correct [servers.{trial.name}]."
    wrong, given = f"{trial.problem} {trial.stderr}", {name for name, _ in server.env}
    if _UNTRUSTED.search(wrong):
        return (
            "Your network has a certificate of its own, which its program does not know. Name its file in Kairos's own "
            f"environment or under env of [servers.{trial.name}]: in NODE_EXTRA_CA_CERTS for npx, in SSL_CERT_FILE "
            "for uvx and Python."
        )
    if server.sandbox and "HOME" not in given and f"{Path.home()}/" in wrong and _UNWRITABLE.search(wrong):
        return (
            "It looks into the home folder, which is empty and read-only in a sandbox. If it wants to write there: "
            f'`env = {{ HOME = "/tmp" }}` under [servers.{trial.name}].'
        )
    shown, program = shlex.join(mask_command(server.command)), Path(server.command[0]).name
    loads = f"{program} loads it first, and is silent where it has no network. " * (program in _LOADERS)
    withheld = [name for name in list_withheld_proxies(os.environ) if name not in given]
    proxies = "".join(
        f'{name} holds a password, so no server is given it; `env = {{ {name} = "env:{name}" }}` gives it. '
        for name in withheld
    )
    return f"{loads}{proxies}Try it in a terminal: `{shown}`; then correct [servers.{trial.name}]."


def check_provider_answer(settings: Settings) -> Iterator[Finding]:
    """Ask the provider one small question, by a run of its own on the day's account."""
    if settings.model is None:
        return
    failures: list[Failure] = []
    finding = partial(Finding, PROVIDER.name)

    async def ask(app: App) -> RunReport:
        app.hear_failures(lambda _, failure: failures.append(failure))
        request = PlannerRequest(
            "Answer with the word ok.",
            system="You answer with one word.",
            tools=(),
            route=PROVIDER.name,
            limits=Limits(rounds=1, model_calls=1),
        )
        started = await app.runs.start(request, _DOCTOR, is_another=True)
        await app.runs.wait([started.run_id], until="rest", wait_s=PROVIDER_TRY_S, caller=PERSON)
        report = await app.runs.report(started.run_id, PERSON)
        if report.status not in END_STATUSES:
            await app.control.cancel(started.run_id, PERSON)
        return report

    began = time.monotonic()
    try:
        report = with_app(settings, ask)
    except KairosError as error:
        yield finding("bad", f"{settings.model} can't be asked: {error.message}", error.hint)
        return
    if failures:
        text, _, cure = failures[-1].message.partition(". ")
        yield finding("bad", f"{settings.model} gave no answer: {text}", cure)
    elif report.usage["model_calls"] and report.rounds:
        tokens = report.usage["input_tokens"] + report.usage["output_tokens"]
        seconds = time.monotonic() - began
        amount = f"{count_of(tokens, 'token')}, {report.run_id}"
        yield finding("ok", f"{settings.model} answered in {seconds:.1f} s ({amount})")
    else:
        why = " ".join(report.held_up_by or report.degraded) or f"nothing came within {PROVIDER_TRY_S:.0f} s."
        yield finding("bad", f"{settings.model} gave no answer: {why}", "Try it again.")


def _try_interpreter(settings: Settings, folder: Path, name: str, argv: list[str]) -> Finding:
    from kairos_mcp.core.tool import ToolContext
    from kairos_mcp.tools.commands.run_command import CommandSettings, command_tools
    from kairos_mcp.tools.files.workspace import Workspace
    from kairos_mcp.tools.tool import call_tool

    try:
        with Workspace(folder) as workspace:
            (tool,) = command_tools(workspace, CommandSettings.from_settings(settings))
            context = ToolContext("doctor", time.monotonic() + TRY_S, lambda _: None)
            result = call_tool(tool, {"argv": argv, "timeout_s": TRY_S / 2}, context)
    except KairosError as error:
        return Finding("programs", "note", f"{folder}: {name} can't be tried: {error.message}", error.hint)
    last = result.content.strip().splitlines()[-1]
    if not result.is_error:
        return Finding("programs", "ok", f"{folder}: {name} runs ({last})")
    if result.code is None:
        return Finding("programs", "note", f"{folder}: {' '.join(argv)} fails: {last}", "Try it in a terminal.")
    problem, _, cure = result.content.partition(". ")
    return Finding("programs", "note", f"{folder}: {name}: {problem}", cure)
