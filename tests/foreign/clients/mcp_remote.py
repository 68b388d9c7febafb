"""mcp-remote, which carries what a local client says to a server over HTTP: here the SDK's client of 2026."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

job = json.loads(sys.argv[1])
proxy = str(Path(job["environment"], "node_modules", ".bin", "mcp-remote"))
strategy = {"http": "http-only", "sse": "sse-only"}[job["transport"]]
carried = {"transport": "stdio", "command": [proxy, job["url"], "--transport", strategy]}
sys.argv[1] = json.dumps({**job, **carried})
runpy.run_path(str(Path(__file__).with_name("mcp_2.py")), run_name="__main__")
