"""Commands that are started without stdin, stdout or stderr, as services and some hosts start them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_a_command_works_with_closed_streams_and_prints_into_no_file(
    kairos, tmp_path: Path, closed: tuple[int, ...]
) -> None:
    script = tmp_path / "s.jsonl"
    script.write_text(json.dumps({"content": "the last word"}) + "\n")
    done = subprocess.run(
        kairos.words("run", "go"),
        cwd=kairos.folder,
        env=kairos.environ(KAIROS_SCRIPT=str(script)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: [os.close(number) for number in closed],
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert (1 in closed) is (b"the last word" not in done.stdout)
    (run,) = json.loads(kairos("runs", "--json").out)["runs"]
    assert run["status"] == "completed"
    written = [file for file in kairos.state.rglob("*") if file.is_file() and b"1 round" in file.read_bytes()]
    assert written == []
