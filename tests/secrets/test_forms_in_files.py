"""Forms of secrets one by one: what is masked, what beside it stays, and what is not looked at for ever."""

from __future__ import annotations

import pytest
from support.app import ME, Place, rests

from kairos_mcp.app.app import App
from kairos_mcp.core import secret_assignments
from kairos_mcp.core.redaction import MASK, Redactor
from kairos_mcp.core.secret_records import MAX_MEMBERS, list_values_around

WORD = "quaggazebra"
# In each text WORD is the secret; all else has to stay.
FORMS = {
    "a variable of a Makefile": (
        "Makefile",
        "DB_PASSWORD ?= quaggazebra\nDB_PASSWORD := quaggazebra\nDB_PASSWORD += quaggazebra\nHOST ?= keep\n",
    ),
    "a typed variable": ("a.go", 'var dbPassword string = "quaggazebra"\nvar host string = "keep"\n'),
    "a constant of Rust": (
        "a.rs",
        'const PASSWORD: &str = "quaggazebra";\nstatic DB_PASSWORD: &\'static str = "quaggazebra";\n',
    ),
    "a pair of YAML": ("a.yaml", "- name: DB_PASSWORD\n  value: quaggazebra\n- name: HOST\n  value: keep\n"),
    "a pair that is turned": ("a.yaml", "- value: quaggazebra\n  name: DB_PASSWORD\n- value: keep\n  name: HOST\n"),
    "a pair in TOML": ("a.toml", '[[env]]\nname = "API_KEY"\nvalue = "quaggazebra"\n[[env]]\nvalue = "keep"\n'),
    "a pair in code": ("a.ts", 'env: [{ name: "DB_PASSWORD", value: "quaggazebra" }, { name: "A", value: "b" }]\n'),
    "attributes": ("web.config", '<add value="quaggazebra" key="DbPassword"/><add key="Host" value="keep"/>\n'),
    "a Kubernetes Secret": (
        "a.yaml",
        "kind: Secret\nmetadata:\n  name: x\ndata:\n  any: quaggazebra\n---\nkind: ConfigMap\ndata:\n  any: keep\n",
    ),
    "a record in a record of secrets": (
        "a.yaml",
        "secrets:\n  a: quaggazebra\n  db:\n    host: keep\n    password: quaggazebra\n  z: quaggazebra\nhost: keep\n",
    ),
    "a record in passwords of JSON": (
        "a.json",
        '{"passwords": {"a": "quaggazebra", "db": {"host": "keep", "token": "quaggazebra"}, "z": "quaggazebra"}}\n',
    ),
    "a record below a comment": (
        "a.yaml",
        "secrets:\n\n# of the first machine\n  a: quaggazebra\n\n      # and more\n  b: quaggazebra\nhost: keep\n",
    ),
    "a record with quoted names": ("a.yaml", "secrets:\n  \"a\": quaggazebra\n  'b': quaggazebra\nhost: keep\n"),
    "a record whose brace stands below": ("a.json", '{\n"secrets":\n{\n"a": "quaggazebra"\n},\n"host": "keep"\n}\n'),
    "a Kubernetes Secret in a list": (
        "a.yaml",
        "- kind: Secret\n  data:\n    any: quaggazebra\n- data:\n    any: quaggazebra\n  kind: Secret\n- kind: Pod\n",
    ),
    "a variable of Terraform": (
        "a.tf",
        'variable "db_password" {\n  type = string\n  default = "quaggazebra"\n}\nvariable "x" {\n  default = "y"\n}\n',
    ),
    "a user of curl": ("run.sh", "curl -u me:quaggazebra https://h\ndocker run -u node:node -u 1000:1000 x\n"),
    "a connection string": ("a.cs", 'c = "Server=h;User Id=sa;Password=quaggazebra;Trusted=yes";\n'),
    "a value beside references": ("a.yaml", "password: quaggazebra\nother_password: ${DB_PASSWORD}\ntoken: $TOKEN\n"),
    "a glued name": ("run.sh", "PGPASS=quaggazebra\nCOMPASS=north\nBYPASS=always\n"),
    "a list": ("a.json", '{"passwords": ["quaggazebra"], "x": ["keep"]}\n'),
    "a value in brackets": ("a.py", 'password = (\n    "quaggazebra"\n)\nnames = ("password", "token")\n'),
    "a directive": ("redis.conf", "requirepass quaggazebra\nport 6379\n"),
    "calls": (
        "a.java",
        'source.setPassword("quaggazebra");\nb.user("keep").password("quaggazebra").build();\n'
        'x.getPassword("keep"); x.setPassword(keep); setPasswordLabel("keep"); x.getToken("keep-411");\n'
        'throw new BadCredentials("keep");\n',
    ),
    "calls with several arguments": (
        "a.py",
        'check_password("quaggazebra", stored)\nuser.set_password(\n    "keep",\n    "quaggazebra",\n)\n'
        'c = UsernamePasswordCredentials("keep", "quaggazebra")\nbasic_auth("keep", "quaggazebra")\n'
        'get_password("keep", "keep")\nbasic_auth("keep")\nlogin("keep", "keep")\nlogin("keep", page="keep")\n',
    ),
    "a table of secrets": (
        "a.toml",
        '[x]\na = "keep"\n[db.secrets] # mine\nmy.a = "quaggazebra"\nb = ["quaggazebra"]\n\n[y]\na = "keep"\n',
    ),
    "records in a list of secrets": (
        "a.yaml",
        "secrets:\n- a: quaggazebra\n  b:\n    host: keep\n- a: quaggazebra\n\n- b: quaggazebra\nlist:\n- a: keep\n",
    ),
    "records in a list of secrets of JSON": (
        "a.json",
        '{"secrets": [{"a": "quaggazebra", "b": {"host": "keep"}}, {"a": "quaggazebra"}], "list": [{"a": "keep"}]}\n',
    ),
    "a key that is said to be one": ("a.yaml", "? password\n: quaggazebra\n? host\n: keep\n"),
    "names with blanks": ("a.ini", "API key = quaggazebra\nDB password (old) = quaggazebra\nhost name = keep\n"),
    "a Kubernetes Secret in braces": (
        "a.json",
        '{"items": [{"data": {"a": "quaggazebra"}, "kind": "Secret"}, {"kind": "ConfigMap", "data": {"a": "keep"}}]}\n',
    ),
    "a secure string": (
        "a.ps1",
        "$a = ConvertTo-SecureString 'quaggazebra' -AsPlainText\n$b = ConvertTo-SecureString $keep -AsPlainText\n",
    ),
    "a list in code": ("a.py", 'passwords = ["quaggazebra", "quaggazebra"]\nnames = ["keep"]\n'),
    "words of prose": ("notes.txt", "Token expired\nPassword required\n"),
}


@pytest.mark.parametrize("what", FORMS)
def test_a_form_is_masked_and_what_stands_beside_it_is_not(what: str) -> None:
    path, text = FORMS[what]
    masked = Redactor().mask_file(path, text.encode())
    assert masked.masked_content.decode() == text.replace(WORD, MASK)
    assert Redactor().mask_file(path, masked.masked_content).spans in ([], ())


LONG_RECORDS = {
    "secrets": ("secrets:\n", "  user{n}: {word}\n", "host: keep\n"),
    "passwords of JSON": ('{"passwords": {\n', '  "user{n}": "{word}",\n', '  "n": "{word}"}, "host": "keep"}\n'),
    "a Kubernetes Secret": ("kind: Secret\ndata:\n", "  user{n}: {word}\n", "---\nhost: keep\n"),
    "a Kubernetes Secret whose kind comes last": ("data:\n", "  user{n}: {word}\n", "kind: Secret\n"),
}


@pytest.mark.parametrize("what", LONG_RECORDS)
def test_each_member_of_a_long_record_of_secrets_is_masked(what: str) -> None:
    head, member, end = (part.replace("{word}", WORD) for part in LONG_RECORDS[what])
    text = f"{head}{''.join(member.replace('{n}', str(n)) for n in range(600))}{end}"
    assert len(text) > 8_192
    assert Redactor().mask_file("a.yaml", text.encode()).masked_content.decode() == text.replace(WORD, MASK)


FAR_RECORDS = {
    "a record of 600 records": '{"secrets": {' + '"a": {"x": "keep"}, ' * 600 + '"b": "quaggazebra"}, "c": "keep"}\n',
    "a list of 600 records": '{"secrets": ['
    + '{"a": "quaggazebra", "b": {"x": "keep"}}, ' * 600
    + '{}], "c": "keep"}\n',
    "a record far to the right": f"a:\n{' ' * 40}secrets:\n" + f"{' ' * 42}b: quaggazebra\n" * 90 + "c: keep\n",
}


@pytest.mark.parametrize("what", FAR_RECORDS)
def test_a_member_behind_many_others_is_masked(what: str) -> None:
    text = FAR_RECORDS[what]
    assert Redactor().mask_file("a.yaml", text.encode()).masked_content.decode() == text.replace(WORD, MASK)


def test_of_a_list_that_is_longer_than_a_secret_so_much_is_masked() -> None:
    text = "passwords: [\n" + '  "quaggazebra",\n' * 2_000 + "]\n"
    shown = Redactor().mask_file("a.json", text.encode()).masked_content.decode()
    assert shown.startswith(text[:16_384].replace(WORD, MASK)[:-40])


def test_the_lists_in_a_list_are_counted_with_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is looked at for 16 KiB, so without a count 9,000 of them would take minutes."""
    judge, left = secret_assignments.is_setting, iter(range(40_000))

    def judge_counted(value: str, *, counts: bool = False) -> bool:
        assert next(left, None) is not None, "too many values were judged"
        return judge(value, counts=counts)

    monkeypatch.setattr(secret_assignments, "is_setting", judge_counted)
    text = 'passwords: ["quaggazebra",\n' * 9_000
    assert WORD not in Redactor().mask_file("a.yaml", text.encode()).masked_content.decode()
    left = iter(range(40_000))
    Redactor().mask_file("b.yaml", ("passwords: [none,\n" * 9_000 + "]").encode())


@pytest.mark.parametrize(
    "text",
    [
        "password: cXVhZ2dhemVicmE=\n",  # not a type with a default
        "password: ${DB_PASSWORD:-quaggazebra}\n",
        "password: !quaggazebra\n",
        "passwd: !!str quaggazebra\n",
    ],
)
def test_a_value_that_only_looks_like_something_else_is_masked_whole(text: str) -> None:
    shown = Redactor().mask_file("a.yaml", text.encode()).masked_content.decode()
    assert MASK in shown
    assert not any(part in shown for part in ("quagga", "cXVh", "DB_P"))


@pytest.mark.parametrize("lines", [59, 61, 5_000])
def test_a_value_of_many_lines_is_masked_to_its_end(lines: int) -> None:
    body = f"  {WORD}\n" * lines
    for path, text in (
        ("a.yaml", f"password: |\n{body}x: 1\n"),
        ("a.sh", f'PASSWORD="\n{body}"\nx=1\n'),
        ("a.py", f'DB_PASSWORD = """\n{body}"""\nx = 1\n'),
    ):
        shown = Redactor().mask_file(path, text.encode()).masked_content.decode()
        assert shown.count(WORD) == 0
        assert shown.count(MASK) == lines
        assert shown.endswith(("x: 1\n", "x=1\n", "x = 1\n"))


def test_of_a_record_few_values_are_looked_at() -> None:
    text = b"name: token\n" + b"value: x\n" * 30
    assert len(list(list_values_around(text, 0))) == MAX_MEMBERS


def test_a_column_with_the_name_of_a_secret_is_masked() -> None:
    text = 'id,dbPassword,note\n1,quagga,keep\n2,"qua""gga,\nzebra",keep\n3,,keep\n'
    shown = Redactor().mask_file("users.csv", text.encode()).masked_content.decode()
    assert shown == 'id,dbPassword,note\n1,[secret],keep\n2,"[secret]\n[secret]",keep\n3,,keep\n'
    assert Redactor().mask_file("a.csv", b"id,name\n1,quagga\n").spans in ([], ())


async def test_a_table_of_secrets_too_large_to_be_masked_is_refused(place: Place) -> None:
    """Its later parts don't say which column is which."""
    row = f"1,{WORD}\n"
    for name, head in (("users.csv", "id,password\n"), ("plain.csv", "id,name\n")):
        (place.workspace / name).write_text(head + row * ((9 << 20) // len(row)))
    async with App.open(place.settings(), via="mcp") as app:
        outputs = {}
        for name in ("users.csv", "plain.csv"):
            run_id = await app.runs.start_call(
                "read_file", {"path": name, "start_line": 700_000, "end_line": 700_001}, ME
            )
            outputs[name] = (await rests(app, run_id)).output
    assert outputs["users.csv"]["is_error"]
    assert WORD not in str(outputs["users.csv"])
    assert WORD in outputs["plain.csv"]["content"]


async def test_all_below_envs_is_asked_about_and_masked(place: Place) -> None:
    (place.workspace / ".envs").mkdir()
    (place.workspace / ".envs" / "prod").write_text(f"PLAIN={WORD}\n")
    async with App.open(place.settings(), via="mcp") as app:
        report = await rests(app, await app.runs.start_call("read_file", {"path": ".envs/prod"}, ME))
    assert report.status == "input_required"
    assert Redactor().mask_file(".envs/prod", f"PLAIN={WORD}\n".encode()).masked_content == b"PLAIN=[secret]\n"
