"""The configuration alone says where files may be touched: a call may choose among its folders, and PATH-043: what a
client calls its roots widens nothing."""

from __future__ import annotations

from typing import Any

import mcp_types as wire
from mcp.client.client import Client
from support.app import Place, place_in
from support.sampling_clients import ERAS, provide_app

from kairos_mcp.app.app import App
from kairos_mcp.server.mcp_server import build_server


async def test_a_single_call_works_in_the_folder_that_it_names(tmp_path):
    place: Place = place_in(tmp_path / "place")
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("another\n")
    settings = place.settings(workspaces=(place.workspace, other))
    async with App.open(settings, via="mcp") as app, Client(build_server(provide_app(app), settings)) as client:
        call = {"name": "read_file", "arguments": {"path": "a.txt"}}
        for named, holds in ((None, "alpha"), ("other", "another"), (str(other), "another")):
            result = (await client.call_tool("registry_call", call | {"workspace": named})).structured_content
            assert result["output"]["content"].startswith(holds)
        refused = await client.call_tool("registry_call", call | {"workspace": str(tmp_path)})
        assert refused.structured_content["code"] == "bad_arguments"
    folders = [folder for (folder,) in place.rows("select workspace from run order by n")]
    assert folders == [str(place.workspace), str(other), str(other)]


async def test_PATH_043_roots_of_a_client_widen_nothing_and_are_not_even_asked_for(tmp_path):
    place: Place = place_in(tmp_path)
    secret = tmp_path / "elsewhere" / "secret.txt"
    secret.parent.mkdir()
    secret.write_text("secret")
    asked: list[Any] = []

    async def roots(_ctx: object) -> wire.ListRootsResult:
        asked.append(_ctx)
        wanted = (f"file://{tmp_path}/elsewhere", "file:///", "http://example.org/", "not a uri")
        return wire.ListRootsResult(roots=[wire.Root.model_construct(uri=each) for each in wanted])

    for mode in ERAS.values():
        async with App.open(place.settings(), via="mcp") as app:
            server = build_server(provide_app(app), app.settings)
            async with Client(server, mode=mode, list_roots_callback=roots) as client:
                for path in (str(secret), "../elsewhere/secret.txt"):
                    call = {"name": "read_file", "arguments": {"path": path}}
                    result = (await client.call_tool("registry_call", call)).structured_content
                    assert result["output"]["data"]["code"] == "path_denied"
                started = {"goal": "x", "route": "caller", "workspace": str(secret.parent)}
                refused = await client.call_tool("planner_run", started)
                assert refused.structured_content["code"] == "bad_arguments"
                call = {"name": "read_file", "arguments": {"path": "a.txt"}}
                result = (await client.call_tool("registry_call", call)).structured_content
                assert result["output"]["content"].startswith("alpha")
    assert asked == []
