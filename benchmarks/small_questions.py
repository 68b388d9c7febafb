"""Questions about small projects, answered by a small local model: through Kairos, and in a naive loop of forty lines.

Opt-in, and no dependency: `python -m benchmarks.small_questions --python VENV/bin/python --gguf FILE`, where VENV has
xllamacpp; or `--base-url URL --model NAME` for a server that runs already. Each way answers the same twenty questions,
`--times` times, in turn; an answer is right if it holds what only the files tell. Prints each answer, then the shares.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.small_model import served
from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags

ROUNDS, TEMPERATURE = 6, 0.2
MAX_TOKENS = 2_048  # of a reply, as Kairos asks of a small model

PROJECTS: Mapping[str, Mapping[str, str]] = {
    "shop": {
        "README.md": "# Shop\n\nA cart and its taxes. Needs Python 3.12. Run the tests with pytest.\n",
        "pyproject.toml": '[project]\nname = "shop"\nversion = "0.7.3"\nrequires-python = ">=3.12"\n',
        "shop/__init__.py": "",
        "shop/cart.py": (
            "from shop.errors import NoSuchArticle\n\nMAX_ITEMS = 43\n\n\nclass Cart:\n"
            "    def __init__(self):\n        self.items = {}\n\n"
            "    def put(self, article, count=1):\n        if len(self.items) >= MAX_ITEMS:\n"
            "            raise OverflowError(article)\n        self.items[article] = count\n\n"
            "    def drop_item(self, article):\n        if article not in self.items:\n"
            "            raise NoSuchArticle(article)\n        del self.items[article]\n"
        ),
        "shop/errors.py": "class NoSuchArticle(KeyError):\n    pass\n",
        "shop/tax.py": "RATE = 0.17\n\n\ndef gross(net):\n    return round(net * (1 + RATE), 2)\n",
        "tests/test_cart.py": (
            "def test_put():\n    pass\n\n\ndef test_drop():\n    pass\n\n\ndef test_too_many():\n    pass\n"
        ),
    },
    "weather": {
        "README.md": "# Weather\n\nShows the weather of a town.\n",
        "package.json": (
            '{"name": "weather", "version": "2.4.1", "license": "ISC",\n'
            ' "scripts": {"serve": "node src/index.js", "check": "node --test"}}\n'
        ),
        "config/default.json": '{"port": 4817, "retries": 6, "api": "https://sky.example.org/v3"}\n',
        "src/index.js": 'import { fetchTown } from "./api.js";\nconsole.log(await fetchTown("Brno"));\n',
        "src/api.js": (
            "export async function fetchTown(town) {\n"
            '  return fetch(`${api}/towns/${town}`, { headers: { "x-weather-token": token } });\n}\n\n'
            "export function kelvinText(value) {\n  return `${value} K`;\n}\n"
        ),
    },
    "notes": {
        "Makefile": "build:\n\tpython build.py\n\nship: build\n\trsync -a out/ host:/srv/notes\n",
        "data/people.csv": "name,phone,town\nAda,5512,Graz\nBo,7734,Brno\nCy,9021,Linz\nDee,3308,Pau\nEli,6647,Ulm\n",
        "diary/may.md": "# May\n\nThe meeting in Brno is on 14 May at nine.\n",
        "diary/june.md": "# June\n\nWe walked through the tundra for six days.\n",
        "todo.txt": "[x] call Bo\n[ ] send the invoice to Graz\n[x] buy paper\n",
    },
}

QUESTIONS = (  # the project, the question, and what a right answer holds
    ("shop", "What is the tax rate in this project?", r"0\.17|17 ?%"),
    ("shop", "Which method of the class Cart removes an article?", r"drop_item"),
    ("shop", "How many tests are in tests/test_cart.py?", r"\b3\b|three"),
    ("shop", "How many items may a cart hold at most?", r"\b43\b"),
    ("shop", "Which exception is raised when an article is removed that is not in the cart?", r"NoSuchArticle"),
    ("shop", "In which file is the class Cart defined?", r"cart\.py"),
    ("shop", "Which version does the project have?", r"0\.7\.3"),
    ("weather", "On which port does the server listen?", r"\b4817\b"),
    ("weather", "Which npm script runs the tests?", r"\bcheck\b"),
    ("weather", "Which HTTP header carries the token?", r"x-weather-token"),
    ("weather", "How often is a request retried?", r"\b6\b|six"),
    ("weather", "What is the license of this project?", r"\bISC\b"),
    ("weather", "Which function writes a temperature as a text?", r"kelvinText"),
    ("weather", "Which host does the API have?", r"sky\.example\.org"),
    ("notes", "What is Cy's phone number?", r"\b9021\b"),
    ("notes", "In which town does Dee live?", r"\bPau\b"),
    ("notes", "Which make target copies the notes to the host?", r"\bship\b"),
    ("notes", "Which entry of todo.txt is not done yet?", r"invoice"),
    ("notes", "On which day is the meeting in Brno?", r"14"),
    ("notes", "Which file mentions the tundra?", r"june"),
)

Answerer = Callable[[str, str, Path], Coroutine[Any, Any, str]]
"""Answers a question: the server's address, the question, the project's folder. Returns the answer."""


# -- the naive loop --------------------------------------------------------------------------------------------------

NAIVE_SYSTEM = """You answer questions about the files of a folder. Reply with one JSON object:
{"tool": "list_files", "arguments": {}} lists all files,
{"tool": "read_file", "arguments": {"path": "..."}} reads one, or
{"answer": "..."} answers the question, once you know."""
NAIVE_SCHEMA = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "tool": {"enum": ["list_files", "read_file"]},
                "arguments": {"type": "object", "properties": {"path": {"type": "string"}}},
            },
            "required": ["tool", "arguments"],
        },
        {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
    ]
}


def look(folder: Path, tool: str, path: str) -> str:
    """What a tool of the naive loop finds."""
    if tool == "list_files":
        return "\n".join(str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file())
    try:
        return (folder / path).read_text()
    except OSError as error:
        return f"error: {error.strerror}"


async def naive(address: str, question: str, folder: Path, *, names_files: bool = False) -> str:
    """The least that a loop can be: nothing is limited, recorded, judged or checked. `names_files`: the question is
    followed by what list_files shows."""
    asked = f"{question}\n\nFiles:\n{look(folder, 'list_files', '')}" if names_files else question
    messages = [{"role": "system", "content": NAIVE_SYSTEM}, {"role": "user", "content": asked}]
    form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": NAIVE_SCHEMA}}
    async with httpx2.AsyncClient(timeout=600) as client:
        for _ in range(ROUNDS):
            body = {"model": "local", "messages": messages, "temperature": TEMPERATURE, "response_format": form}
            body["max_tokens"] = MAX_TOKENS
            reply = (await client.post(f"{address}/chat/completions", json=body)).json()
            said = reply["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": said})
            try:
                turn = json.loads(said)
            except ValueError:
                return said
            if "answer" in turn:
                return str(turn["answer"])
            found = look(folder, turn["tool"], turn["arguments"].get("path", ""))
            messages.append({"role": "user", "content": found})
    return ""


# -- Kairos ----------------------------------------------------------------------------------------------------------


def through_kairos(prompts: str, dialect: str, model: str) -> Answerer:
    async def answer(address: str, question: str, folder: Path) -> str:
        environ = {
            "KAIROS_MODEL": f"openai:{model}",
            "KAIROS_BASE_URL": address,
            "KAIROS_DIALECT": dialect,
            "KAIROS_PROMPTS": prompts,
            "KAIROS_CONTEXT_TOKENS": "8000",
        }
        with tempfile.TemporaryDirectory() as home:
            settings = load_settings(Flags(home=home, workspaces=(str(folder),)), environ)
            request = PlannerRequest(question, temperature=TEMPERATURE, limits=Limits(rounds=ROUNDS))
            async with App.open(settings, via="command") as app:
                run_id = (await app.runs.start(request, Caller())).run_id
                await app.runs.wait([run_id], until="done", wait_s=600, caller=Caller())
                return (await app.runs.report(run_id, Caller())).summary or ""

    return answer


def ways(model: str) -> dict[str, Answerer]:
    return {
        "naive": naive,
        "naive, files named": partial(naive, names_files=True),
        "short, text": through_kairos("short", "text", model),
        "full, text": through_kairos("full", "text", model),
        "short, native": through_kairos("short", "native", model),
    }


async def measure(address: str, chosen: Mapping[str, Answerer], times: int, questions: int) -> None:
    right = dict.fromkeys(chosen, 0)
    seconds = dict.fromkeys(chosen, 0.0)
    for nth in range(times):
        for project, question, pattern in QUESTIONS[:questions]:
            for way, answer in chosen.items():
                with tempfile.TemporaryDirectory() as name:
                    folder = Path(name) / project
                    for path, text in PROJECTS[project].items():
                        (folder / path).parent.mkdir(parents=True, exist_ok=True)
                        (folder / path).write_text(text)
                    began = time.monotonic()
                    said = await answer(address, question, folder)
                is_right = re.search(pattern, said) is not None
                right[way] += is_right
                seconds[way] += time.monotonic() - began
                line = {"nth": nth, "way": way, "question": question, "right": is_right, "said": said[:160]}
                print(json.dumps(line, ensure_ascii=False), flush=True)
    asked = times * min(questions, len(QUESTIONS))
    for way in chosen:
        share = {"way": way, "right": right[way], "of": asked, "seconds_each": round(seconds[way] / asked, 1)}
        print(json.dumps(share), flush=True)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_questions", description=__doc__)
    parser.add_argument("--python", help="of an environment with xllamacpp")
    parser.add_argument("--gguf", help="the model's file for that server")
    parser.add_argument("--base-url", help="a server that runs already, in place of --python")
    parser.add_argument("--model", default="local-1.5b")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--questions", type=int, default=len(QUESTIONS), help="ask the first ones alone")
    parser.add_argument("--ways", default="", help="names of ways, separated by semicolons; default: all")
    given = parser.parse_args(words)
    every = ways(given.model)
    chosen = {name: every[name] for name in (given.ways.split(";") if given.ways else every)}
    if given.base_url:
        asyncio.run(measure(given.base_url, chosen, given.times, given.questions))
    else:
        with served(given.python, given.gguf) as address:
            asyncio.run(measure(f"{address}/v1", chosen, given.times, given.questions))


if __name__ == "__main__":
    main(sys.argv[1:])
