"""The files of a workspace that instruct agents, or start programs, as soon as somebody opens or enters its folder.

One list for all that protects them: scope L1 of the gate and of edits, the programs that a run starts, the paths of
other servers' calls. A row says who reads the files and where that is documented. What builds and tests a project (a
Makefile, package.json) is not here: it runs when a person says so.

To add a row: globs as `Scopes` reads them. A name without a slash counts at any depth, with all that is in it; a glob
with a slash is a full path from the workspace's root.
"""

from __future__ import annotations

from typing import NamedTuple


class InstructionFiles(NamedTuple):
    """Files that one program reads: who, the page that says so, and their globs."""

    reader: str
    documented: str
    globs: tuple[str, ...]


def _of_applications(glob: str) -> tuple[str, ...]:
    """Return the glob below where Linux, macOS and Windows keep the settings of applications, in a home folder."""
    return tuple(f"{top}/{glob}" for top in (".config", "Library/Application Support", "AppData/Roaming"))


AGENTS = (
    InstructionFiles("AGENTS.md", "https://agents.md", ("AGENTS.md", "AGENT.md", "AGENTS.local.md", ".agents")),
    InstructionFiles("Agent Skills", "https://agentskills.io/specification", ("SKILL.md", "skills/*")),
    InstructionFiles("agents and prompts by folder", "docs/settings.md", ("prompts/*", "agents/*")),
    InstructionFiles("Claude Code", "https://code.claude.com/docs/en/memory", ("CLAUDE.md", "CLAUDE.local.md")),
    InstructionFiles("Claude Code", "https://code.claude.com/docs/en/settings", (".claude", ".claude.json")),
    InstructionFiles("Claude Code", "https://code.claude.com/docs/en/mcp", (".mcp.json",)),
    InstructionFiles(
        "Claude Code", "https://code.claude.com/docs/en/plugins-reference", (".claude-plugin", "hooks/hooks.json")
    ),
    InstructionFiles(
        "Claude Desktop",
        "https://modelcontextprotocol.io/docs/develop/connect-local-servers",
        ("claude_desktop_config.json",),
    ),
    InstructionFiles("Codex", "https://developers.openai.com/codex/guides/agents-md", ("AGENTS.override.md",)),
    InstructionFiles("Codex", "https://developers.openai.com/codex/config-basic", (".codex", ".codex-plugin")),
    InstructionFiles("Gemini CLI", "https://geminicli.com/docs/cli/gemini-md", ("GEMINI.md", ".gemini")),
    InstructionFiles("Gemini CLI", "https://geminicli.com/docs/extensions", ("gemini-extension.json",)),
    InstructionFiles(
        "Qwen Code", "https://qwenlm.github.io/qwen-code-docs/en/users/configuration/settings", ("QWEN.md", ".qwen")
    ),
    InstructionFiles(
        "GitHub Copilot", "https://docs.github.com/en/copilot/how-tos/configure-custom-instructions", (".github",)
    ),
    InstructionFiles(
        "Cursor",
        "https://cursor.com/docs/context/rules",
        (".cursor", ".cursorrules", *_of_applications("Cursor/User/*")),
    ),
    InstructionFiles(
        "Windsurf", "https://docs.windsurf.com/windsurf/cascade/memories", (".windsurf", ".windsurfrules", ".devin")
    ),
    InstructionFiles(
        "Cline", "https://docs.cline.bot/customization/cline-rules", (".clinerules", ".clinerules-*", ".cline")
    ),
    InstructionFiles(
        "Roo Code",
        "https://docs.roocode.com/features/custom-instructions",
        (".roo", ".roorules", ".roorules-*", ".roomodes"),
    ),
    InstructionFiles(
        "Kilo Code",
        "https://kilo.ai/docs/automate/mcp/using-in-kilo-code",
        (".kilocode", ".kilo", ".kilocodemodes", ".kilocoderules", "kilo.json", "kilo.jsonc"),
    ),
    InstructionFiles(
        "goose",
        "https://block.github.io/goose/docs/guides/context-engineering/using-goosehints",
        (".goosehints", ".goose", ".config/goose/*"),
    ),
    InstructionFiles("Kiro", "https://kiro.dev/docs/steering", (".kiro",)),
    InstructionFiles(
        "Amazon Q Developer",
        "https://docs.aws.amazon.com/amazonq/latest/qdeveloper-ug/context-project-rules.html",
        (".amazonq",),
    ),
    InstructionFiles("Junie", "https://www.jetbrains.com/help/junie/customize-guidelines.html", (".junie",)),
    InstructionFiles(
        "JetBrains AI Assistant",
        "https://www.jetbrains.com/help/ai-assistant/configure-project-rules.html",
        (".aiassistant",),
    ),
    InstructionFiles(
        "Continue",
        "https://docs.continue.dev/customize/deep-dives/rules",
        (".continue", ".continuerules", ".continuerc.json"),
    ),
    InstructionFiles(
        "opencode",
        "https://opencode.ai/docs/config",
        ("opencode.json", "opencode.jsonc", ".opencode", ".config/opencode/*"),
    ),
    InstructionFiles(
        "aider", "https://aider.chat/docs/config/aider_conf.html", (".aider.conf.yml", ".aider.model.settings.yml")
    ),
    InstructionFiles(
        "Crush",
        "https://github.com/charmbracelet/crush/blob/main/docs/config/README.md",
        ("CRUSH.md", "CRUSH.local.md", "crush.json", ".crush.json", ".crush", "crushrc", ".crushrc"),
    ),
    InstructionFiles(
        "Augment",
        "https://docs.augmentcode.com/cli/rules",
        (".augment", ".augment-guidelines", ".augment-guidelines.md"),
    ),
    InstructionFiles(
        "OpenHands",
        "https://docs.openhands.dev/openhands/usage/customization/repository",
        (".openhands", ".openhands_instructions"),
    ),
    InstructionFiles("Amp", "https://ampcode.com/manual", (".amp",)),
    InstructionFiles("Warp", "https://docs.warp.dev/agent-platform/capabilities/rules", ("WARP.md", ".warp")),
    InstructionFiles("Antigravity", "https://antigravity.google/docs/rules-workflows", (".agent", ".antigravity")),
    InstructionFiles("Factory", "https://docs.factory.ai/cli/configuration/settings", (".factory",)),
    InstructionFiles("Trae", "https://docs.trae.ai/ide/rules", (".trae",)),
    InstructionFiles("Qoder", "https://docs.qoder.com/user-guide/rules", (".qoder",)),
    InstructionFiles("CodeBuddy", "https://www.codebuddy.ai/docs/cli/memory", ("CODEBUDDY.md", ".codebuddy")),
    InstructionFiles("GitLab Duo", "https://docs.gitlab.com/user/gitlab_duo/customize_duo", (".gitlab/duo/*",)),
    InstructionFiles("Replit", "https://docs.replit.com/replitai/replit-dot-md", ("replit.md", ".replit")),
    InstructionFiles("fast-agent", "https://fast-agent.ai/ref/config_file", ("fastagent.config.yaml",)),
    InstructionFiles("Ruler", "https://github.com/intellectronica/ruler", (".ruler",)),
    InstructionFiles("rulesync", "https://github.com/dyoshikawa/rulesync", (".rulesync",)),
)
"""Agents, and hosts whose first subject is one: what they are told, and the servers and hooks that they start."""

EDITORS = (
    InstructionFiles(
        "VS Code", "https://code.visualstudio.com/docs/configure/settings", (".vscode", "*.code-workspace")
    ),
    InstructionFiles(
        "VS Code",
        "https://code.visualstudio.com/docs/copilot/customization/mcp-servers",
        _of_applications("Code/User/*"),
    ),
    InstructionFiles("Visual Studio", "https://learn.microsoft.com/visualstudio/ide/mcp-servers", (".vs",)),
    InstructionFiles("Zed", "https://zed.dev/docs/ai/rules", (".rules",)),
    InstructionFiles("Zed", "https://zed.dev/docs/configuring-zed", (".zed", ".config/zed/*", "AppData/Roaming/Zed/*")),
    InstructionFiles(
        "JetBrains IDEs",
        "https://www.jetbrains.com/help/idea/settings-tools-startup-tasks.html",
        (".idea", "*.ipr", "*.iws", "*.run.xml"),
    ),
    InstructionFiles("Fleet", "https://www.jetbrains.com/help/fleet/run-configurations.html", (".fleet",)),
    InstructionFiles("Theia", "https://theia-ide.org/docs/user_getting_started", (".theia",)),
    InstructionFiles("Sublime Text", "https://www.sublimetext.com/docs/projects.html", ("*.sublime-project",)),
    InstructionFiles("Nova", "https://docs.nova.app/extensions/project-configuration", (".nova",)),
    InstructionFiles("Lapce", "https://docs.lapce.dev", (".lapce",)),
    InstructionFiles(
        "Vim",
        "https://vimhelp.org/starting.txt.html#initialization",
        (".exrc", "_exrc", ".vimrc", "_vimrc", ".gvimrc", ".lvimrc"),
    ),
    InstructionFiles("Neovim", "https://neovim.io/doc/user/starting.html", (".nvim.lua", ".nvimrc")),
    InstructionFiles(
        "Emacs",
        "https://www.gnu.org/software/emacs/manual/html_node/emacs/Directory-Variables.html",
        (".dir-locals.el", ".dir-locals-2.el"),
    ),
    InstructionFiles("Helix", "https://docs.helix-editor.com/configuration.html", (".helix",)),
    InstructionFiles(
        "Eclipse",
        "https://help.eclipse.org/latest/topic/org.eclipse.platform.doc.isv/reference/misc/project_description_file.html",
        (".project", ".externalToolBuilders"),
    ),
    InstructionFiles(
        "RStudio",
        "https://docs.posit.co/ide/user/ide/guide/environments/r/managing-r.html",
        (".Rprofile", ".Renviron", "*.Rproj"),
    ),
    InstructionFiles(
        "Dev Containers",
        "https://containers.dev/implementors/spec/#devcontainerjson",
        (".devcontainer", ".devcontainer.json"),
    ),
    InstructionFiles(
        "Gitpod", "https://www.gitpod.io/docs/classic/user/references/gitpod-yml", (".gitpod.yml", ".gitpod.Dockerfile")
    ),
    InstructionFiles("Firebase Studio", "https://firebase.google.com/docs/studio/devnix-reference", (".idx",)),
    InstructionFiles("CodeSandbox", "https://codesandbox.io/docs/learn/environment/tasks", (".codesandbox",)),
    InstructionFiles("Eclipse Che", "https://devfile.io/docs", ("devfile.yaml", ".devfile.yaml")),
)
"""Editors, and places where a folder is opened in one: tasks, language servers, settings that name programs."""

SHELLS = (
    InstructionFiles("direnv", "https://direnv.net/man/direnv.1.html", (".envrc", ".direnv")),
    InstructionFiles(
        "mise",
        "https://mise.jdx.dev/configuration.html",
        (
            *("mise.toml", ".mise.toml", "mise.*.toml", ".mise.*.toml", ".miserc.toml", ".mise"),
            *("mise/*", "mise-tasks/*", ".config/mise/*", ".config/mise.toml", ".config/mise.*.toml"),
        ),
    ),
    InstructionFiles("asdf", "https://asdf-vm.com/manage/configuration.html", (".tool-versions",)),
    InstructionFiles("proto", "https://moonrepo.dev/docs/proto/config", (".prototools", ".prototools.*")),
    InstructionFiles("autoenv", "https://github.com/hyperupcall/autoenv", (".autoenv", ".env.leave", ".autoenv*.zsh")),
    InstructionFiles("shadowenv", "https://shopify.github.io/shadowenv", (".shadowenv.d",)),
    InstructionFiles("smartcd", "https://github.com/cxreg/smartcd", (".bash_enter", ".bash_leave")),
)
"""What a shell with such a hook reads when somebody enters the folder."""

GIT = (
    InstructionFiles("git", "https://git-scm.com/docs/gitattributes", (".gitattributes",)),
    InstructionFiles("git", "https://git-scm.com/docs/gitmodules", (".gitmodules",)),
    InstructionFiles("git", "https://git-scm.com/docs/githooks", (".githooks", ".git-hooks")),
    InstructionFiles("git", "https://git-scm.com/docs/git-config#_includes", (".gitconfig",)),
    InstructionFiles("Mercurial", "https://www.mercurial-scm.org/doc/hgrc.5.html", (".hg/hgrc*", "*/.hg/hgrc*")),
    InstructionFiles(
        "Jujutsu", "https://docs.jj-vcs.dev/latest/config", (".jj/repo/config.toml", "*/.jj/repo/config.toml")
    ),
    InstructionFiles(
        "pre-commit", "https://pre-commit.com", (".pre-commit-config.yaml", ".pre-commit-config.yml", "prek.toml")
    ),
    InstructionFiles(
        "Lefthook",
        "https://lefthook.dev/configuration",
        (
            *(
                "lefthook.[jty]*",
                ".lefthook.[jty]*",
                "lefthook-local.[jty]*",
                ".lefthook-local.[jty]*",
                ".lefthook",
                ".lefthook-local",
            ),
            *(".config/lefthook.[jty]*", ".config/lefthook-local.[jty]*"),
        ),
    ),
    InstructionFiles("husky", "https://typicode.github.io/husky", (".husky", ".huskyrc", ".huskyrc.*")),
    InstructionFiles(
        "simple-git-hooks",
        "https://github.com/toplenboren/simple-git-hooks",
        (".simple-git-hooks.[cjm]*", "simple-git-hooks.[cjm]*"),
    ),
    InstructionFiles("Overcommit", "https://github.com/sds/overcommit", (".overcommit.yml",)),
    InstructionFiles("hk", "https://hk.jdx.dev/configuration", ("hk.pkl", "hk.local.pkl", ".hk")),
)
"""What git, or the hooks that a repository's users have installed, read at the next status, checkout or commit."""

INSTRUCTION_FILES = (*AGENTS, *EDITORS, *SHELLS, *GIT)
INSTRUCTION_GLOBS = tuple(dict.fromkeys(glob for files in INSTRUCTION_FILES for glob in files.globs))
