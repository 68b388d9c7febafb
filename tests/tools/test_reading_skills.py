"""Skills are named to a model and read on demand, in both kinds of loops; what lies outside of one is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skills_ref.errors import ParseError
from skills_ref.parser import parse_frontmatter
from skills_ref.validator import validate_metadata
from support.app import ME, Place, assert_all_lawful, law, place_in, rests, says
from support.tools import WorkspaceTools

from kairos_mcp.app.app import App
from kairos_mcp.cli.doctor_checks import check_environment
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.run_spec import MandateRef, PhaseRequest, PlannerRequest
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.settings.folders import packaged_folder
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.tools.files.workspace_scopes import build_scopes
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.skills import (
    LISTING_CHARS,
    MAX_NAMED_FILES,
    MAX_SKILLS,
    Skill,
    SkillFolders,
    parse_skill,
    skill_tool,
)

OURS = ["mandates", "ooda-cycle", "planner-loop"]


def write_skill(folder: Path, name: str, description: str = "Says how.", body: str = "Do it well.") -> Path:
    skill = folder / name
    skill.mkdir(parents=True, exist_ok=True)
    (skill / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\n{body}\n")
    return skill


def skill_tools(*folders: Path) -> WorkspaceTools:
    return WorkspaceTools(folders[0], ToolRegistry([skill_tool(SkillFolders(folders), 1 << 20, Redactor())]))


def names(*folders: Path) -> list[str]:
    return [skill.name for skill in SkillFolders(folders).list_skills().skills]


def read(place: WorkspaceTools, name: str, **more: str) -> tuple[str, str | None]:
    result = place.call("read_skill", name=name, **more)
    return result.content, result.code


def test_ours_are_named_with_what_they_are_for() -> None:
    said = skill_tools(packaged_folder("skills")).tool("read_skill").spec.description
    assert names(packaged_folder("skills")) == OURS
    assert all(f"- {name}: " in said for name in OURS)


def test_a_skill_is_read_whole_and_says_what_lies_beside_it(tmp_path: Path) -> None:
    write_skill(tmp_path, "tidy")
    (tmp_path / "tidy" / "references" / "style").mkdir(parents=True)
    (tmp_path / "tidy" / "references" / "more.md").write_text("More.\n")
    place = skill_tools(tmp_path)
    content, _ = read(place, "tidy")
    assert "Do it well." in content
    assert "references/more.md" in content
    assert read(place, "tidy", path="references/more.md") == ("More.\n", None)
    shown = place.call("read_skill", name="tidy", path="./references//more.md").data
    assert (shown["skill"], shown["path"]) == ("tidy", "references/more.md")


def test_a_later_shelf_goes_before_an_earlier_one(tmp_path: Path) -> None:
    ours, users = tmp_path / "ours", tmp_path / "users"
    write_skill(ours, "tidy", "Ours.", "ours")
    write_skill(ours, "plan", "Ours.", "ours")
    write_skill(users, "tidy", "Theirs.", "theirs")
    place = skill_tools(ours, users)
    assert "- tidy: Theirs." in place.tool("read_skill").spec.description
    assert "theirs" in read(place, "tidy")[0]
    assert "ours" in read(place, "plan")[0]


def test_a_broken_one_does_not_fall_back_in_silence(tmp_path: Path) -> None:
    ours, users = tmp_path / "ours", tmp_path / "users"
    write_skill(ours, "tidy", "Ours.")
    (users / "tidy").mkdir(parents=True)
    (users / "tidy" / "SKILL.md").write_text("no front matter\n")
    listing = SkillFolders((ours, users)).list_skills()
    assert listing.skills == ()
    assert "tidy" in listing.left_out[0]
    assert read(skill_tools(ours, users), "tidy")[0].startswith("no front matter")


@pytest.mark.parametrize(
    ("name", "more", "code"),
    [
        ("none", {}, "not_found"),
        ("../tidy", {}, "not_found"),
        ("tidy/..", {}, "not_found"),
        ("tidy", {"path": "../secret.txt"}, "path_denied"),
        ("tidy", {"path": "a/../../secret.txt"}, "path_denied"),
        ("tidy", {"path": "/etc/passwd"}, "path_denied"),
        ("tidy", {"path": "link.md"}, "path_denied"),
        ("tidy", {"path": "out/secret.txt"}, "path_denied"),
        ("tidy", {"path": "pipe"}, "not_regular_file"),
        ("tidy", {"path": "picture.png"}, "binary_file"),
        ("tidy", {"path": "."}, "bad_arguments"),
        ("linked", {}, "path_denied"),
    ],
)
def test_nothing_outside_of_a_skill_is_read(tmp_path: Path, name: str, more: dict[str, str], code: str) -> None:
    shelf = tmp_path / "shelf"
    skill = write_skill(shelf, "tidy")
    (tmp_path / "secret.txt").write_text("SECRET\n")
    write_skill(tmp_path / "elsewhere", "linked", body="SECRET")
    (skill / "link.md").symlink_to(tmp_path / "secret.txt")
    (skill / "out").symlink_to(tmp_path)
    (shelf / "linked").symlink_to(tmp_path / "elsewhere" / "linked")
    (skill / "picture.png").write_bytes(b"\x89PNG\0\0")
    os.mkfifo(skill / "pipe")
    content, got = read(skill_tools(shelf), name, **more)
    assert got == code
    assert "SECRET" not in content
    assert names(shelf) == ["tidy"]


def test_many_skills_are_named_within_bounds_and_what_is_not_is_counted(tmp_path: Path) -> None:
    for number in range(MAX_SKILLS + 20):
        write_skill(tmp_path, f"skill-{number:03}", "long " * 100)
    listing = SkillFolders([tmp_path]).list_skills()
    said = skill_tools(tmp_path).tool("read_skill").spec.description
    assert len(listing.skills) == MAX_SKILLS
    assert any(str(MAX_SKILLS) in why for why in listing.left_out)
    assert len(said) < LISTING_CHARS + 600
    assert said.count("\n- skill-") + int(said.rpartition("and ")[2].split()[0]) == MAX_SKILLS
    assert read(skill_tools(tmp_path), "skill-210")[1] is None  # one that is not named can be read all the same


def test_of_many_files_the_first_are_named(tmp_path: Path) -> None:
    skill = write_skill(tmp_path, "tidy")
    for number in range(MAX_NAMED_FILES + 5):
        (skill / f"f{number:03}.md").write_text("x")
    shown = skill_tools(tmp_path).call("read_skill", name="tidy")
    assert len(shown.data["files"]) == MAX_NAMED_FILES
    assert "more]" in shown.content


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("name: tidy\n", "description"),
        ("description: x\n", "name"),
        ("name: other\ndescription: x\n", "another name"),
        ("name: Tidy\ndescription: x\n", "lowercase"),
        ("name: tidy\ndescription: " + "x" * 1025 + "\n", "1024"),
        ("name: tidy\ndescription: [a, b\n", "YAML"),
        ("name: tidy\ndescription: x\nname: tidy\n", "YAML"),
        ("name: &a tidy\ndescription: *a\n", "YAML"),
        ("name: tidy\ndescription: 'a --- b'\n", "---"),
        ("- a\n- b\n", "YAML"),
        ("".join(f"k{n}: v\n" for n in range(60)), "no front matter"),
        ("description: " + "x" * 5_000 + "\n", "no front matter"),
        ("\n".join(" " * n + "a:" for n in range(39)) + " x\n", "name"),
    ],
    ids=lambda text: str(text)[:24],
)
def test_what_is_no_skill_says_why(head: str, why: str) -> None:
    with pytest.raises(BadArguments, match=why):
        parse_skill(f"---\n{head}---\nbody", "tidy")


@pytest.mark.parametrize(
    "text",
    [
        "---\nname: tidy\ndescription: Says how.\n---\n",
        "---\r\nname: tidy\r\ndescription: Says how.\r\n---\r\nbody --- more",
        '---\nname: tidy\ndescription: "Says how."\nlicense: MIT\n---\n',
        "---\nname: tidy\ndescription: >\n  Says\n  how.\nmetadata:\n  version: '1'\nallowed-tools: Read Grep\n---\n",
    ],
)
def test_a_head_may_be_any_that_the_format_has(text: str) -> None:
    assert parse_skill(text, "tidy") == Skill("tidy", "Says how.")


@law
@given(st.text(st.sampled_from("abz09 -.,'\"[]{}!*#:>|%@`~?&\t"), min_size=1, max_size=40))
def test_law_a_plain_head_means_what_the_formats_own_library_reads(description: str) -> None:
    text = f"---\nname: tidy\ndescription: {description}\n---\n"
    try:
        found = parse_skill(text, "tidy")
    except BadArguments:
        return
    try:
        values = parse_frontmatter(text)[0]
    except ParseError:  # a plain value with a sign of YAML in it is taken as it stands
        assert found == Skill("tidy", " ".join(description.split()))
        return
    assert validate_metadata({key: values[key] for key in ("name", "description")}) == []
    assert found == Skill("tidy", " ".join(values["description"].split()))


def test_a_folder_of_skills_comes_from_the_file_the_environment_and_the_state_folder(tmp_path: Path) -> None:
    home, named = tmp_path / "home", tmp_path / "named"
    home.mkdir()
    (home / "kairos.toml").write_text('skills = ["../named"]\n')
    settings = load_settings(Flags(home=str(home)), {})
    assert [os.path.realpath(path) for path in settings.skills] == [str(named)]
    several = os.pathsep.join([str(named), str(tmp_path / "b")])
    assert load_settings(Flags(home=str(home)), {"KAIROS_SKILLS": several}).skills == (named, tmp_path / "b")


def test_skills_that_a_person_named_are_instructions_and_the_users_own_are_the_servers(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    settings = place.settings(skills=(place.workspace / "advice",))
    (place.workspace / "advice").mkdir()
    scopes = build_scopes(place.workspace, settings)
    assert [scopes.scope_of(path) for path in ("advice/x/SKILL.md", "advice/x/run.sh", "src/a.py")] == [
        "L1",
        "L1",
        "L2",
    ]


def test_the_paths_of_a_skill_are_no_paths_of_the_workspace() -> None:
    spec = skill_tools(packaged_folder("skills")).tool("read_skill").spec
    wanted = GatedCall(spec, {"name": "tidy", "path": "secrets/key.md"})
    assert Gate([GateRule("*", "deny", paths=("secrets/**",))]).judge(wanted).decision == "allow"
    assert Gate([GateRule("read_skill", "deny")]).judge(wanted).decision == "deny"


def asks_for(name: str, **more: str) -> dict[str, object]:
    return {"tool_calls": [{"name": "read_skill", "arguments": {"name": name, **more}}]}


async def test_a_planner_loop_reads_the_users_own_and_not_ours(tmp_path: Path) -> None:
    place: Place = place_in(tmp_path)
    write_skill(place.home / "config" / "skills", "tidy", "Keeps it tidy.", "Sweep first.")
    lines = (asks_for("tidy"), asks_for("mandates"), asks_for("missing"), says("done"))
    async with App.open(place.settings(*lines), via="mcp") as app:
        run_id = (await app.runs.start(PlannerRequest("tidy up"), ME)).run_id
        assert (await rests(app, run_id)).status == "completed"
        await assert_all_lawful(app)
    bodies = [json.loads(body) for (body,) in place.rows("select body from answer join step on step.id = step"
                                                         " where kind = 'call' order by step")]  # fmt: skip
    assert "Sweep first." in bodies[0]["content"]
    assert [(body["code"], "There are: tidy." in body["content"]) for body in bodies[1:]] == [("not_found", True)] * 2
    ((tools,),) = place.rows("select body from text where body like '%read_skill%' and body like '%input_schema%'")
    assert "- tidy: Keeps it tidy." in tools
    assert "- mandates" not in tools


async def test_a_run_is_not_offered_to_read_skills_where_there_are_none(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    async with App.open(place.settings(says("done")), via="mcp") as app:
        await rests(app, (await app.runs.start(PlannerRequest("tidy up"), ME)).run_id)
    assert place.rows("select body from text where body like '%read_skill%' and body like '%input_schema%'") == []


async def test_decide_reads_one_and_no_skill_is_an_effect(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    oriented = {"summary": "x", "priorities": ["y"], "risk_level": "low"}
    noop = {"action": "noop", "reason": "read"}
    write_skill(place.home / "config" / "skills", "tidy", "Keeps it tidy.", "Sweep first.")
    lines = (says(json.dumps(oriented)), asks_for("tidy"), says(json.dumps(noop)))
    async with App.open(place.settings(*lines[1:]), via="mcp") as app:
        started = await app.runs.start(PhaseRequest("decide", MandateRef(goal="tidy"), oriented), ME)
        assert (await rests(app, started.run_id)).status == "completed"
        await assert_all_lawful(app)
    ((body,),) = place.rows("select body from answer join step on step.id = step where path = 'decide/read-2/call-1'")
    assert "Sweep first." in json.loads(body)["content"]


def test_doctor_names_the_skills_that_can_not_be_read(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    write_skill(place.home / "config" / "skills", "tidy")
    broken = place.home / "config" / "skills" / "broken"
    broken.mkdir()
    (broken / "SKILL.md").write_text("nothing\n")
    settings = place.settings(skills=(tmp_path / "gone",))
    shown = [finding.text for finding in check_environment(settings, {}) if finding.matter == "skills"]
    assert shown == [f"{tmp_path / 'gone'} is not a folder", "1 that read_skill reads", shown[-1]]
    assert shown[-1].startswith("left out: broken: SKILL.md of broken has no front matter")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_skill_is_read_as_its_author_s_editor_wrote_it(tmp_path: Path, encoding: str) -> None:
    folder = tmp_path / "skills" / "colon"
    folder.mkdir(parents=True)
    text = "---\r\nname: colon\r\ndescription: Make it ready: errors, empty states.\r\n---\r\nBody\r\n"
    (folder / "SKILL.md").write_bytes(text.encode(encoding))
    listing = SkillFolders([tmp_path / "skills"]).list_skills()
    assert (listing.skills, listing.left_out) == ((Skill("colon", "Make it ready: errors, empty states."),), ())
