"""Settings: what goes before what, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.limits import Limits
from kairos_mcp.settings.folders import packaged_folder
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.names import SETTINGS, VARIABLES, unknown_variables, variable_name
from kairos_mcp.settings.schema import find_line, read_settings_file
from kairos_mcp.settings.settings import Flags, Settings
from kairos_mcp.settings.table_values import GateRule


def settings_of(home: Path, text: str = "", environ: dict[str, str] | None = None, **flags: str) -> Settings:
    if text:
        home.mkdir(exist_ok=True)
        (home / "kairos.toml").write_text(text, encoding="utf-8")
    return load_settings(Flags(home=str(home), **flags), environ or {})  # type: ignore[arg-type]  # texts


def test_nothing_given_means_the_defaults_and_makes_nothing(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "home")
    assert settings == Settings(
        home=tmp_path / "home",
        config_dirs=(packaged_folder("config"), tmp_path / "home" / "config"),
        origins=settings.origins,
    )
    assert settings.limits == Limits(rounds=100)
    assert set(settings.origins) == {"home", *SETTINGS}
    assert not (tmp_path / "home").exists()


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(tmp_path: Path) -> None:
    text = 'tools = "core"\ndefault_rounds = 7\ncontext_tokens = 50_000\n'
    environ = {"KAIROS_TOOLS": "lean", "KAIROS_DEFAULT_ROUNDS": "8"}
    settings = settings_of(tmp_path, text, environ, tools="all")
    assert (settings.tools, settings.default_rounds, settings.context_tokens) == ("all", 8, 50_000)
    origins = [settings.origins[name] for name in ("tools", "default_rounds", "context_tokens", "route")]
    assert origins == ["flag", "environment", "file", "default"]


def test_limits_come_one_by_one_in_dollars_and_seconds(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "[limits]\nusd = 0.5\nrounds = 20\n", {"KAIROS_LIMITS_SECONDS": "1.5"})
    assert settings.limits == Limits(rounds=20, nano_usd=500_000_000, milliseconds=1_500)
    assert settings.origins["limits.usd"] == "file"
    assert settings.origins["limits.seconds"] == "environment"


def test_an_empty_variable_says_nothing(tmp_path: Path) -> None:
    environ = {variable_name(name): "" for name in SETTINGS}
    assert settings_of(tmp_path, environ=environ).origins["tools"] == "default"


def test_workspaces_are_resolved_folders_each_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    environ = {"KAIROS_WORKSPACE": f"{tmp_path}/a:{tmp_path}/b:{tmp_path}/link"}
    assert settings_of(tmp_path / "home", environ=environ).workspaces == (tmp_path / "a", tmp_path / "b")


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "home").mkdir()
    settings = settings_of(tmp_path / "home", 'workspaces = ["../project"]\nscript = "s.jsonl"\n')
    assert settings.workspaces == (tmp_path / "project",)
    assert settings.script == tmp_path / "home" / "s.jsonl"


def test_gate_rules_keep_their_order(tmp_path: Path) -> None:
    text = '[[gate]]\ntools = "read_*"\nverdict = "allow"\n[[gate]]\ntools = "*"\nverdict = "deny"\n'
    assert settings_of(tmp_path, text).gate == (GateRule("read_*", "allow"), GateRule("*", "deny"))


@pytest.mark.parametrize(
    "text",
    [
        "colour = 1",
        "[limits]\ncolour = 1",
        '[[gate]]\ntools = "*"\nverdict = "deny"\ncolour = 1',
        '[[gate]]\ntools = "*"\nverdict = "perhaps"',
        'home = "elsewhere"',
        'route = "telepathy"',
        'default_rounds = "5"',
        "default_rounds = true",
        "default_rounds = 0",
        "default_rounds = 5.0",
        "[limits]\nusd = nan",
        "[limits]\nusd = inf",
        "[limits]\ntool_calls = -1",
        "limits = 3",
        'workspaces = ["nowhere"]',
        'workspaces = ["kairos.toml"]',
        "tools = [",
        "tools = " + "[" * 2_000,
        'tools = ""',
    ],
)
def test_a_bad_file_is_refused_whole(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        settings_of(tmp_path, text)


@pytest.mark.parametrize(
    "environ",
    [
        {"KAIROS_ROUTE": "telepathy"},
        {"KAIROS_LIMITS_USD": "nan"},
        {"KAIROS_LIMITS_ROUNDS": "2.5"},
        {"KAIROS_DEFAULT_ROUNDS": "many"},
        {"KAIROS_WORKSPACE": "/nowhere/at/all"},
        {"KAIROS_CONFIG": "/nowhere.toml"},
    ],
)
def test_a_bad_variable_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        settings_of(tmp_path, environ=environ)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        *(
            ("rounds = 3", "[limits]"),
            ("model_calls = 3", "[limits] or [day] or [[day_budget]]"),
            ('argv = ["true"]', "[[gate]]"),
        ),
        *(('[limits]\nargv = ["true"]', "[[gate]]"), ('cwd = "x"', "[servers.NAME]")),
    ],
)
def test_a_line_whose_table_is_still_a_comment_is_told_its_table(tmp_path: Path, text: str, table: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings_of(tmp_path, text)
    assert f" belongs below a line {table}: " in refused.value.hint


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ('model = "gpt-5"', "model: it has to be a provider and its model"),
        ('base_url = "here"', "base_url: it has to be an address"),
        ('[servers."a b"]\ncommand = "x"', "it has to be a name of letters"),
        ('[servers.a]\nurl = "here"', "servers.a.url: it has to be an address"),
        ('instructions = ["/x"]', "instructions.0: it has to be a path"),
    ],
)
def test_a_value_of_a_wrong_form_is_told_the_form_and_no_expression(tmp_path: Path, text: str, form: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings_of(tmp_path, text)
    assert form in refused.value.message
    assert "^" not in refused.value.message


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kairos.toml").write_bytes(b"tools = '\xff'")
    with pytest.raises(ConfigError):
        settings_of(tmp_path)


def test_the_users_prompt_goes_before_ours_file_by_file(tmp_path: Path) -> None:
    ours, users = tmp_path / "ours", tmp_path / "users"
    for folder, name in ((ours, "one"), (ours, "two"), (users, "two")):
        (folder / "prompts").mkdir(parents=True, exist_ok=True)
        (folder / "prompts" / f"{name}.md").write_text(f"{folder.name} {name}", encoding="utf-8")
    settings = Settings(home=tmp_path, config_dirs=(ours, users))
    assert settings.read_prompt("one") == "ours one"
    assert settings.read_prompt("two") == "users two"
    for name in ("three", "../ours/prompts/one", "", "one.md", "a" * 100):
        with pytest.raises(ConfigError):
            settings.read_prompt(name)


def test_a_variable_with_our_prefix_that_means_nothing_is_found() -> None:
    known = dict.fromkeys(VARIABLES, "1")
    assert unknown_variables({**known, "KAIROS_HOME": "x", "KAIROS_CONFIG": "y"}) == []
    assert unknown_variables({"KAIROS_GATE": "x", "KAIROS_TOLS": "y", "PATH": "z"}) == [
        ("KAIROS_GATE", None),
        ("KAIROS_TOLS", "KAIROS_TOOLS"),
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-8"])
def test_a_settings_file_is_read_in_the_encodings_that_editors_write(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "kairos.toml").write_bytes("keep_days = 9 # été\r\n[limits]\r\nrounds = 7\r\n".encode(encoding))
    found = load_settings(Flags(home=str(tmp_path)), {})
    assert (found.keep_days, found.limits.rounds) == (9, 7)


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("modell", 1),
        ("limits.roundss", 4),
        ("gate.1.efect", 9),
        ("gate.0.tool", 6),
        ("servers.down.url", 11),
        ("servers.up.x-y", 13),
        ("nothing", None),
    ],
)
def test_the_line_of_a_key_is_found(key: str, line: int | None) -> None:
    text = (
        'modell = "a"\n\n[limits]\nroundss = 3\n[[gate]]\ntool = "a"\n[[gate]]\ntool = "b"\nefect = "read"\n'
        '[servers.down]\nurl = "x"\n[servers."up"]\nx-y = 1\n'
    )
    assert find_line(text, key) == line


def test_an_unknown_setting_is_told_with_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "kairos.toml"
    file.write_text('route = "auto"\nmodell = "openai:x"\n', encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        read_settings_file(file)
    assert "line 2" in refused.value.message
    assert "Did you mean model?" in refused.value.hint
    assert len(refused.value.hint) < 100
