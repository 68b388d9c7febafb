"""A live run inside a host's conversation: an MCP App, one HTML document made of the page's own files.

Tools that start or show runs name it to a host that shows apps (the extension io.modelcontextprotocol/ui).
The document loads nothing and asks the host alone: it reads by run_trace, and leads to the page for what a person
decides. Where the settings let whoever calls decide, it does so by run_continue, as a model might.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import mcp_types as wire

from kairos_mcp.page.files import FOLDER

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

EXTENSION = "io.modelcontextprotocol/ui"
URI = "ui://kairos/run.html"
MIME_TYPE = "text/html;profile=mcp-app"
TOOLS = ("planner_run", "team_run", "ooda_run", "run_status", "run_continue")
OF_TOOL = {"ui": {"resourceUri": URI}, "ui/resourceUri": URI}  # the second one is what older hosts read
OF_RESOURCE: dict[str, Any] = {
    "ui": {
        "csp": {"connectDomains": [], "resourceDomains": [], "frameDomains": [], "baseUriDomains": []},
        "prefersBorder": True,
    }
}
LIBRARY = "vendor/preact-htm.js"
MODULES = (
    "registers.js",
    "format.js",
    "steps.js",
    "status.js",
    "waiting.js",
    "view.js",
    "app.js",
)  # each after those that it imports
_STYLE = "#app{padding:14px 16px}.run h1{font-size:17px}"
_IMPORT = re.compile(r'^import \{[^}]*\} from "[^"]+";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|let|function|async function|class) )", re.MULTILINE)
_JS_COMMENT = re.compile(r"^ *//[^\n]*\n|(?<=[;,{(>]) // [^\n\"'`]*$|^/\*\*.*?\*/\n", re.MULTILINE | re.DOTALL)
_JS_SPACE = re.compile(r"^\s+", re.MULTILINE)  # before lines: in a template too it is but white space
_JS_BREAK = re.compile(r"(?<=[;{(\[>])\n|\n(?=[})\]<]|\$\{)")  # where two lines are one to both
_CSS_SPACE = re.compile(r"(?:/\*.*?\*/|\s)+", re.DOTALL)
_CSS_NEEDLESS = re.compile(r"(?:;(?= ?}))? ?([{};,]) ?|(?<=:) ")  # no selector of ours begins with a colon
_EXPORTED = re.compile(r"export\s*\{([^}]*)\};?\s*$")


def shows_apps(ctx: ServerRequestContext[Any]) -> bool:
    """Whether the client has declared that it shows such documents."""
    declared = ctx.session.client_capabilities
    settings = ((declared.extensions if declared is not None else None) or {}).get(EXTENSION)
    types = settings.get("mimeTypes") if isinstance(settings, Mapping) else None
    return isinstance(types, list | tuple) and MIME_TYPE in types


def with_app(listing: wire.ListToolsResult) -> wire.ListToolsResult:
    """Return the list of tools for a client that shows apps, which others are not sent: it is longer."""
    tools = [
        tool.model_copy(update={"meta": {**(tool.meta or {}), **OF_TOOL}}) if tool.name in TOOLS else tool
        for tool in listing.tools
    ]
    return listing.model_copy(update={"tools": tools, "cache_scope": "private"})


@cache
def make_document() -> str:
    """Return the document: styles and scripts within it, no address in it."""
    style = _CSS_NEEDLESS.sub(r"\1", _CSS_SPACE.sub(" ", _read("run.css")))
    scripts = [_as_library(_read(LIBRARY)), *(_as_part(_read(name)) for name in MODULES)]
    script = '(() => {\n"use strict";\n' + "\n".join(scripts) + "\n})();"
    assert "</script" not in script.lower()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>Kairos run</title><style>{style}{_STYLE}</style></head>"
        f'<body><div id="app"></div><script>{script}</script></body></html>'
    )


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _as_part(module: str) -> str:
    """Return a module as a part of one script: the others stand before it, so it imports and exports nothing."""
    return _JS_BREAK.sub("", _JS_SPACE.sub("", _JS_COMMENT.sub("", _EXPORT.sub("", _IMPORT.sub("", module)))))


def _as_library(module: str) -> str:
    """Return a bundled module as one statement that declares what it exports; its own names stay inside."""
    found = _EXPORTED.search(module)
    assert found is not None
    pairs = [pair.split(" as ") for pair in found[1].replace("\n", " ").split(",") if pair.strip()]
    names = {pair[-1].strip(): pair[0].strip() for pair in pairs}
    returned = ",".join(f"{name}:{inner}" for name, inner in names.items())
    return f"const {{{','.join(names)}}} = (() => {{ {module[: found.start()]}; return {{{returned}}}; }})();"
