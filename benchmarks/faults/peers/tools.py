"""What every peer's tools do: ask the witness to execute an effect."""

import json
import urllib.request

GOAL = "Do what the plan says."


def effect(url: str, name: str, step: int) -> str:
    request = urllib.request.Request(
        f"{url}/effect/{name}", json.dumps({"step": step}).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        return reply.read().decode()
