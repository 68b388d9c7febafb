"""mcpc: declares sampling, then answers a request for it with "method not found"."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from commands import FOLDER, JOB, package_file, read_json, run_command, write_servers
from host_model import drive_by_job, take_steps
from scripted_model import report

MCPC = package_file("@apify", "mcpc", "bin", "mcpc")
PLACE = {"MCPC_HOME_DIR": str(FOLDER / "mcpc")}
TRIES = 4  # it gives the process that it starts in the background 5 s to come up: too little on a busy machine


async def run_mcpc(*words: str) -> Any:
    return await read_json("node", MCPC, "--json", *words, **PLACE)


async def connect(tries: int = TRIES) -> None:
    target = JOB["url"] if JOB["transport"] == "http" else f"{write_servers({})}:kairos"
    try:
        await run_mcpc("connect", target, "@kairos")
    except RuntimeError:
        if tries == 1:
            raise
        await connect(tries - 1)


async def call(name: str, arguments: dict[str, Any]) -> Any:
    return (await run_mcpc("@kairos", "tools-call", name, json.dumps(arguments)))["structuredContent"]


async def read(uri: str) -> Any:
    return (await run_mcpc("@kairos", "resources-read", uri))["contents"][0]["text"]


async def prompt(name: str, arguments: dict[str, str]) -> Any:
    return (await run_mcpc("@kairos", "prompts-get", name, json.dumps(arguments)))["messages"][0]["content"]["text"]


async def main() -> None:
    await connect()
    try:
        if JOB["way"] == "steps":
            report({"steps": await take_steps(call, read=read, prompt=prompt)})
        else:
            report(await drive_by_job(call))
    finally:
        await run_command("node", MCPC, "close", "@kairos", **PLACE)


asyncio.run(main())
