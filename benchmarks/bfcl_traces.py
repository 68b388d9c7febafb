"""Carry out the ground truths of BFCL's days of several turns, and print for each what was said, called and answered.

Run by `bfcl.py` with a Python that has bfcl-eval: one JSON a line, a list of turns. A turn is what the user said and
its calls; a call is its service, function, arguments and answer, the last two as JSON texts.
"""

from __future__ import annotations

import ast
import copy
import inspect
import json
from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files
from typing import Any

DAYS = "BFCL_v4_multi_turn_base.json"
SOURCES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}


def days() -> Iterator[list[dict[str, Any]]]:
    """Yield the turns of each day."""
    data = files("bfcl_eval") / "data"
    tasks = [json.loads(line) for line in (data / DAYS).read_text(encoding="utf-8").splitlines()]
    answers = (data / "possible_answer" / DAYS).read_text(encoding="utf-8").splitlines()
    truths = {each["id"]: each["ground_truth"] for each in map(json.loads, answers)}
    for task in tasks:
        services = {name: make_service(name, task["initial_config"].get(name, {})) for name in task["involved_classes"]}
        yield [
            {
                "said": "\n".join(message["content"] for message in messages if message["role"] == "user"),
                "calls": [carry_out(services, text) for text in calls],
            }
            for messages, calls in zip(task["question"], truths[task["id"]], strict=True)
        ]


def make_service(name: str, config: dict[str, Any]) -> Any:
    service = getattr(import_module(f"{SOURCES}.{MODULES[name]}"), name)()
    if hasattr(service, "_load_scenario"):
        service._load_scenario(copy.deepcopy(config), long_context=False)
    return service


def carry_out(services: dict[str, Any], text: str) -> list[str]:
    """Carry out a call that is written as Python."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call), text
    assert isinstance(call.func, ast.Name), text
    function = call.func.id
    owner = next(name for name, service in services.items() if hasattr(service, function))
    method = getattr(services[owner], function)
    given = [ast.literal_eval(each) for each in call.args]
    arguments = dict(zip(inspect.signature(method).parameters, given, strict=False))
    arguments |= {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg}
    try:
        answer = method(**arguments)
    except Exception as error:  # what a service does not take it says by any of them
        answer = {"error": str(error)}
    return [owner, function, json.dumps(arguments), json.dumps(answer, default=str)]


if __name__ == "__main__":
    for day in days():
        print(json.dumps(day), flush=True)
