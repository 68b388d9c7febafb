"""A client of another SDK through HAProxy, on the commands of deploy/compose.yaml: its server is killed meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import postgres
from support.app import place_in, reads, says
from support.deployment import NAME, deployed_behind_proxy

from tests.foreign.cells import PYTHON_1
from tests.foreign.driving import CLIENTS

pytestmark = [pytest.mark.foreign, pytest.mark.unreplayed]
LINES = (reads("a.txt", delay_s=1.5), says("done", delay_s=1.5))


def test_a_client_of_2025_completes_its_run_though_its_server_is_killed(
    tmp_path: Path, postgres_server: str, environment: Any
) -> None:
    folder, place, root = environment(PYTHON_1.environ), place_in(tmp_path / "laid"), tmp_path / "deployed"
    place.script.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    root.mkdir()
    place.workspace.rename(root / "files")
    with deployed_behind_proxy(root, postgres.make_empty_schema(postgres_server), place.script) as deployment:
        headers = {"Authorization": f"Bearer {deployment.token}", "Host": NAME}
        job = json.dumps({"url": f"{deployment.url}/mcp", "headers": headers, "goal": "look"})
        command = [*PYTHON_1.environ.command(folder, CLIENTS / "mcp_1_behind_proxy.py"), job]
        environ = {**os.environ, "SSL_CERT_FILE": str(root / "authority.pem")}
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, env=environ, text=True, **pipes) as client:
            run_id = client.stdout.readline().strip()
            deployment.web[deployment.last_server()].kill()
            out, err = client.communicate("\n", timeout=120)
        assert json.loads(out.splitlines()[-1]) == {"status": "completed", "lost": 1}, err
        with postgres.open_session(deployment.database) as session:
            assert session.rows("select id, outcome is not null from run") == [(run_id, 1)]
            assert session.rows("select count(*) from step") == session.rows("select count(*) from answer") == [(3,)]
