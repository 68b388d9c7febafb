"""The MCP App: clients that show apps are told of it, others are sent what they were; the document needs nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.client.extension import ClientExtension
from support.app import ME, Place, says, start_run
from support.page import served_page
from support.page_runs import ask_to_write
from support.sampling_clients import ERAS, MODERN, provide_app

from kairos_mcp.app.app import App
from kairos_mcp.app.run_steps import StepsQuery
from kairos_mcp.server import apps
from kairos_mcp.server.mcp_server import build_server, list_tools

MOST_BYTES = 64 * 1024


class ShowsApps(ClientExtension):
    """A host that renders apps declares this."""

    identifier = apps.EXTENSION

    def settings(self) -> dict[str, Any]:
        return {"mimeTypes": [apps.MIME_TYPE]}


async def listed_for(app: App, era: str, *, shows: bool) -> wire.ListToolsResult:
    extensions = [ShowsApps()] if shows else None
    async with Client(build_server(provide_app(app), app.settings), mode=ERAS[era], extensions=extensions) as client:
        return await client.list_tools()


async def test_a_host_that_shows_apps_is_told_of_it_and_others_are_not(place: Place, era: str) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        told, plain = await listed_for(app, era, shows=True), await listed_for(app, era, shows=False)
        meta = {tool.name: tool.meta for tool in told.tools if tool.meta}
        assert meta == dict.fromkeys(apps.TOOLS, apps.OF_TOOL)
        assert [tool for tool in plain.tools if tool.meta] == []
        assert [tool.model_copy(update={"meta": None}) for tool in told.tools] == plain.tools
        if era == MODERN:
            assert (told.cache_scope, plain.cache_scope) == ("private", "public")
        assert {tool.name for tool in told.tools} == {tool.name for tool in list_tools("all").tools}


async def test_the_document_is_a_resource_that_the_host_may_not_let_reach_anything(place: Place, era: str) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        async with Client(build_server(provide_app(app), app.settings), mode=ERAS[era]) as client:
            (entry,) = [each for each in (await client.list_resources()).resources if str(each.uri) == apps.URI]
            assert (entry.mime_type, entry.meta) == (apps.MIME_TYPE, apps.OF_RESOURCE)
            (contents,) = (await client.read_resource(apps.URI)).contents
        assert isinstance(contents, wire.TextResourceContents)
        assert (contents.mime_type, contents.meta, contents.text) == (
            apps.MIME_TYPE,
            apps.OF_RESOURCE,
            apps.make_document(),
        )
        assert [hosts for hosts in apps.OF_RESOURCE["ui"]["csp"].values() if hosts] == []


def test_the_document_is_whole_and_names_no_address(tmp_path: Path) -> None:
    document = apps.make_document()
    assert len(document.encode()) < MOST_BYTES
    addresses = set(re.findall(r"https?://[\w./-]+", document))
    assert addresses <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1998/Math/MathML",
        "http://www.w3.org/1999/xhtml",
    }
    (script,) = re.findall(r"<script>(.*)</script>", document, re.DOTALL)
    assert "</script" not in script.lower()
    assert re.findall(r"^\s*(?:import|export)\b.*", script, re.MULTILINE) == []
    assert "url(" not in document
    assert " // " not in script  # a comment would take the next line in, where both are joined
    if (node := shutil.which("node")) is not None:
        (tmp_path / "app.js").write_text(script)
        subprocess.run([node, "--check", tmp_path / "app.js"], check=True)


async def test_what_waits_for_a_person_names_the_page_where_one_is_served(place: Place) -> None:
    run_id = await ask_to_write(place)
    async with App.open(place.settings(), via="mcp") as app:
        bare = await app.runs.report(run_id, ME)
        assert "in a browser" not in (bare.next or {})["why"]
        with served_page(place.home) as visitor:
            link = f"{visitor.url}#/runs/{run_id}"
            report = await app.runs.report(run_id, ME)
            assert (report.next or {})["why"].endswith(f"(or deny); in a browser: {link}.")
            frame = await app.records.frame(run_id, StepsQuery(), ME)
            assert frame["run"]["page"] == link
        assert "page" not in (await app.records.frame(run_id, StepsQuery(), ME))["run"]


@pytest.mark.parametrize("settings", [{}, {"mimeTypes": ["text/html"]}, {"mimeTypes": "text/html;profile=mcp-app"}])
async def test_a_client_that_shows_other_documents_is_not_told(place: Place, settings: dict[str, Any]) -> None:
    class ShowsOthers(ShowsApps):
        def settings(self) -> dict[str, Any]:
            return settings

    async with App.open(place.settings(says("done")), via="mcp") as app:
        await start_run(app)
        async with Client(build_server(provide_app(app), app.settings), extensions=[ShowsOthers()]) as client:
            assert [tool for tool in (await client.list_tools()).tools if tool.meta] == []
