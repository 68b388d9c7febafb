"""The drills for operators: a small sample of them on a database, and what they judge by."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import Request, urlopen

import pytest
from support import postgres

FILE = Path(__file__).parents[2] / "deploy" / "drills.py"


@pytest.fixture(scope="module")
def drills() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drills", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["drills"] = module
    spec.loader.exec_module(module)
    return module


def post(url: str, body: dict[str, Any]) -> Any:
    with urlopen(Request(url, json.dumps(body).encode())) as answer:
        return json.loads(answer.read())


def test_the_model_has_each_run_post_its_number_once(drills: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drills, "MODEL_S", 0)
    monkeypatch.setattr(drills, "POST_S", 0)
    world = drills.World()
    messages = [{"role": "system", "content": "…"}, {"role": "user", "content": "Post drill-17 and end."}]
    asked = {"model": "drill", "messages": messages}
    (choice,) = post(f"{world.url}/v1/chat/completions", asked)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"step": 17}
    post(f"{world.url}/append", {"step": 17})
    messages.append({"role": "tool", "content": "{}"})
    (choice,) = post(f"{world.url}/v1/chat/completions", asked)["choices"]
    assert (choice["finish_reason"], world.posts) == ("stop", {17: 1})


def test_a_drill_that_is_not_right_is_told_and_fails_the_whole(
    drills: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [drills.Drill("one", "as wanted", True), drills.Drill("another", "a run was lost", False)]
    monkeypatch.setattr(drills, "carry_out", lambda *_: found)
    monkeypatch.setattr(sys, "argv", ["drills.py", "--store", "postgresql://nowhere/x"])
    assert drills.main() == 1
    assert "| another | a run was lost | NO |" in capsys.readouterr().out
    found.pop()
    assert drills.main() == 0


def test_a_process_that_ends_is_told_with_its_last_words_and_spoils_no_later_drill(
    drills: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = drills.SetUp(tmp_path, "postgresql://nowhere/x", drills.World())
    told: list[list[bool]] = []
    begun: list[int] = []

    def start_all() -> None:
        begun.append(len(begun))
        place.web += [place._start("web", ("--help",))]

    @contextmanager
    def set_up(_store: str) -> Iterator[Any]:
        start_all()
        yield place
        place.end()

    def ends(place: Any, _count: int) -> Any:
        monkeypatch.setattr(place, "_words", lambda *_: [sys.executable, "-c", "print('no port'); raise SystemExit(2)"])
        process = place._start("work", ("work",))
        place.work.append(process)
        place.wait_until("a worker can act", lambda: False, process)

    def goes(place: Any, _count: int) -> Any:
        return drills.Drill("goes", "as wanted", place.work == [] and len(place.web) == 1)

    monkeypatch.setattr(place, "start_all", start_all)
    monkeypatch.setattr(drills, "set_up", set_up)
    found = drills.carry_out("", 1, (ends, goes), lambda so_far: told.append([each.is_right for each in so_far]))
    assert "ended with 2: no port" in found[0].seen
    assert told == [[False], [False, True]]
    assert begun == [0, 1]


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.unreplayed
def test_a_sample_of_the_drills_goes_as_it_should(drills: ModuleType, postgres_server: str) -> None:
    sample = (drills.undisturbed, drills.kill_worker, drills.rotate_token, drills.spending)
    store = postgres.make_empty_schema(postgres_server)
    found = drills.carry_out(store, 4, sample, lambda _: None)
    assert [(each.tried, each.seen) for each in found if not each.is_right] == []
    with pytest.raises(RuntimeError, match="has tables"):
        drills.carry_out(store, 4, sample, lambda _: None)
