"""What is taken out of a text, and what is left: keys by value, by name and by shape; ordinary text never."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.app import law
from support.counted_calls import count_calls

import kairos_mcp
from kairos_mcp.core import secret_records
from kairos_mcp.core.masked_file import PIECE_BYTES, WINDOW_BYTES
from kairos_mcp.core.messages import Completion, JsonObject, ToolCall, ToolResult, ToolSpec
from kairos_mcp.core.redact_values import redact_arguments, redact_completion, redact_result
from kairos_mcp.core.redaction import CACHED_BYTES, MASK, Redactor, find_secret_values
from kairos_mcp.core.secret_assignments import MAX_JUDGED_MEMBERS
from kairos_mcp.core.secret_grammar import MAX_JUDGED
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.tools.tool import call_redacted

KEY = "kq-4711-zX9+/pLm=c0ffee"
AWS_ID, AWS = "AKIAIOSFODNN7EXAMPLQ", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEX"

SECRETS = {
    "an OpenAI key": ("use sk-proj-abcDEF0123456789abcdef now", "use [secret] now"),
    "an Anthropic key": ("sk-ant-api03-" + "a1B2" * 20, MASK),
    "a token of GitHub": (f"ghp_{'a1' * 18}.", f"{MASK}."),
    "a fine token of GitHub": ("github_pat_" + "A1" * 30, MASK),
    "an AWS id": (f"id {AWS_ID}", f"id {MASK}"),
    "an AWS secret": (f"AWS_SECRET_ACCESS_KEY={AWS}\nREGION=x", f"AWS_SECRET_ACCESS_KEY={MASK}\nREGION=x"),
    "a key of Google": ("AIza" + "Sy4711abcdefghijklmnopqrstuvwxyz-_0", MASK),
    "a token of Slack": ("xoxb-4711-4711-abcDEF", MASK),
    "a JSON Web Token": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-_9", MASK),
    "a token of this server": ("kairos.ci.abcdefghijklmnopqrstuvwxyz0123456789-_ABCD", MASK),
    "a webhook of Slack": ("to https://hooks.slack.com/services/T0/B0/abcdefghijklm4711 now", f"to https://{MASK} now"),
    "a webhook of Discord": (f"https://discord.com/api/webhooks/471147/{'a1B-' * 9}", f"https://{MASK}"),
    "a shared address of Azure": (
        f"https://x.example/c?sv=1&sig={'a1%2B' * 9}%3D&se=2",
        f"https://x.example/c?sv=1{MASK}&se=2",
    ),
    "a private key": (
        "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nz",
        "a\n[secret]\n[secret]\n[secret]\nz",
    ),
    "a private key that was cut": ("a -----BEGIN PRIVATE KEY-----\nMIIE", "a [secret]\n[secret]"),
    "a header": ("Authorization: Bearer abc123def456", "Authorization: Bearer [secret]"),
    "a header in a command": ('curl -H "X-Api-Key: 4711-abc-4711"', 'curl -H "X-Api-Key: [secret]"'),
    "a header of a dict": ("{'Authorization': 'Basic dXNlcjpwYXNz'}", "{'Authorization': 'Basic [secret]'}"),
    "a cookie": ("Set-Cookie: sid=4711abcd; Path=/", "Set-Cookie: [secret]"),
    "a JSON field": ('{"client_secret": "9f8e7d6c5b4a"}', '{"client_secret": "[secret]"}'),
    "a JSON field in a text": ('"{\\"api_key\\": \\"9f8e7d6c\\"}"', '"{\\"api_key\\": \\"[secret]\\"}"'),
    "a YAML field": ("password: 9f8e7D6c5b", "password: [secret]"),
    "a shell variable": ("export GITLAB_TOKEN=9f8e7D6c5b", "export GITLAB_TOKEN=[secret]"),
    "a variable set to a word": ("export DB_PASSWORD=hunter\nHOST=x", "export DB_PASSWORD=[secret]\nHOST=x"),
    "a variable set to words": ('SMTP_PASS="open sesame"', 'SMTP_PASS="[secret]"'),
    "a variable in a list of YAML": ("  - JWT_SECRET=abc.d", "  - JWT_SECRET=[secret]"),
    "a variable as a key of YAML": ("  DB_PASSWORD: swordfish", "  DB_PASSWORD: [secret]"),
    "a variable as a key of JSON": ('{"DB_PASSWORD": "hunter"}', '{"DB_PASSWORD": "[secret]"}'),
    "a variable in JSON in a text": ('"{\\"JWT_SECRET\\": \\"abc\\"}"', '"{\\"JWT_SECRET\\": \\"[secret]\\"}"'),
    "a variable of an image": ("ENV MYSQL_PWD hunter", "ENV MYSQL_PWD [secret]"),
    "a variable on a command line": ("docker run -e DB_PASS_2=$2b$10$x img", "docker run -e DB_PASS_2=[secret] img"),
    "a cookie of letters alone": ("Cookie: sid=abcdef; theme=dark", "Cookie: [secret]"),
    "a cookie in a variable": ("SESSION_COOKIE=abcdef", "SESSION_COOKIE=[secret]"),
    "a name in one word": ('rootpassword: "aB3dE5gH7jK9mN"', 'rootpassword: "[secret]"'),
    "a variable in one word": ("PGPASSWORD=swordfish psql", "PGPASSWORD=[secret] psql"),
    "a password in an address": ("postgres://bob:s3cr3t@db/x", "postgres://bob:[secret]@db/x"),
}
ORDINARY = [
    'api_key = os.environ["OPENAI_API_KEY"]',
    'JWT_SECRET = os.environ["JWT_SECRET"]',
    "DB_PASSWORD=${DB_PASSWORD:-x} DB_PASS=$DB_PASS",
    "DB_PASSWORD: SecretStr",
    "DB_PASSWORD=get_password(user)",
    "connect(DB_PASSWORD=db_password)",
    'PASSWORD = "password"',
    "JWT_SECRET: the key that signs tokens",
    "JWT_SECRET=/run/secrets/jwt",
    "Cookie: name=<value>",
    "COMPASS=north",
    "password = get_password(user_1234)",
    "token = tokens[0]",
    "token: str | None = None",
    'headers = {"Authorization": f"Bearer {token}"}',
    "Authorization: <your token here>",
    "Authorization: Required",
    "api_key=settings.provider.key2",
    "secret = sha256(text).hexdigest()",
    "token = Token4711Reader(user)",
    '"token": "round-3/call-2"',
    "the password is 12345678",
    "max_tokens: 4096",
    "secret_key: /run/secrets/key_1",
    "credential: https://example.org/12345678",
    "risk-assessment-of-the-long-words",
    "sk-learn-contrib-package-name",
    "AKIA is a prefix; eyJ another; sk- too",
    "http://localhost:8080/@someone",
    "https://user:password@example.org is how it looks",
    "commit 2896e9f0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "uuid 123e4567-e89b-12d3-a456-426614174000",
]


@pytest.mark.parametrize("what", SECRETS)
def test_a_secret_is_taken_out_and_nothing_else(what: str) -> None:
    text, plain = SECRETS[what]
    assert Redactor().redact_text(text).text == plain
    assert Redactor().redact_text(text).count == plain.count(MASK)
    assert Redactor().redact_text(plain).text == plain


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert Redactor().redact_text(text).text == text


def test_our_own_sources_stay_as_they_are() -> None:
    mask = Redactor()
    for file in Path(kairos_mcp.__file__).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert mask.redact_text(text).text == text, file


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("OPENAI_API_KEY", KEY, True),
        ("GITHUB_TOKEN", KEY, True),
        ("DB_PASSWORD", "hunter22", True),
        ("PGPASSWORD", "hunter22", True),
        ("APP_SECRET_2", KEY, True),
        ("DATABASE_DSN", KEY, True),
        ("openai_api_key", KEY, True),
        ("POSTGRES_PASSWORD", "postgres", False),  # a word that stands in ordinary texts
        ("PIN_TOKEN", "12345678", False),
        ("SHORT_KEY", "abc123", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/run/secrets/google.json", False),
        ("TOKENIZERS_PARALLELISM", "not-a-secret-1", False),
        ("PATH", "/usr/bin:/usr/local/bin", False),
        ("PWD", "/home/me/key4711", False),
    ],
)
def test_variables_that_name_a_key_are_known(name: str, value: str, known: bool) -> None:
    assert (list(find_secret_values({name: value})) == [value]) is known


@law
@given(
    before=st.text(), after=st.text(), values=st.lists(st.text(st.characters(codec="utf-8"), min_size=9), max_size=3)
)
def test_a_known_value_survives_in_no_form(before: str, after: str, values: list[str]) -> None:
    """As it is, in a URL, in JSON, in base64 wherever it begins."""
    mask = Redactor([KEY, *values])
    raw = KEY.encode()
    forms = [KEY, quote(KEY, safe=""), json.dumps(KEY)[1:-1]]
    forms += [base64.b64encode(b"x" * lead + raw + b"y" * 3).decode() for lead in range(3)]
    forms += [base64.urlsafe_b64encode(b"x" * lead + raw).decode() for lead in range(3)]
    for form in forms:
        plain = mask.redact_text(f"{before}{form}{after}").text
        assert KEY not in plain
        assert quote(KEY, safe="") not in plain
        assert base64.b64encode(raw).decode().rstrip("=")[:-1] not in plain
        assert raw not in _decode_longest(plain)


def _decode_longest(text: str) -> bytes:
    """What the longest run of base64 in a text says."""
    runs = "".join(c if c.isascii() and (c.isalnum() or c in "+/-_") else " " for c in text).split()
    longest = max(runs, key=len, default="").replace("-", "+").replace("_", "/")
    return base64.b64decode(longest[: len(longest) // 4 * 4])


@law
@given(st.text())
def test_what_is_masked_once_is_masked(text: str) -> None:
    mask = Redactor([KEY])
    once = mask.redact_text(text)
    assert mask.redact_text(once.text) == type(once)(once.text, 0)


@law
@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_keeps_its_shape(value: object) -> None:
    plain, count = Redactor().redact_json(value)
    assert count or plain == value
    assert type(plain) is type(value)


def test_values_under_the_name_of_a_key_are_taken_out_of_json() -> None:
    given_ = {"headers": {"Authorization": "Bearer 4711abcd", "Accept": "text/html"}, "apiKey": "4711abcd", "n": 17}
    plain, count = Redactor().redact_json({"a": [given_], "max_tokens": "4711abcd", "tokens": ["4711abcd"]})
    assert count == 2
    assert plain["a"][0]["headers"] == {"Authorization": MASK, "Accept": "text/html"}
    assert plain["a"][0]["apiKey"] == MASK
    assert plain["max_tokens"] == "4711abcd"


@pytest.mark.parametrize(
    "given_",
    [{"password": "hunter2"}, {"client_secret": "abcdefghijkl"}, {"db_password": "correct horse battery"},
     {"smtp": [{"passwd": "zebra1"}]}, {"DB_PASS": "zz"}, {"pwd": "zebra1"}, {"title": "hunter2"}, {"pin": "1234"},
     {"password": "${PASSWORD}"}, {"password": ""}, {"password": None}, {"tokens": 17}],
    ids=str,
)  # fmt: skip
def test_data_shows_what_its_text_shows(given_: dict[str, object]) -> None:
    shown = redact_result(ToolResult("done", data=given_), Redactor()).data
    assert shown == json.loads(Redactor().redact_text(json.dumps(given_)).text)


def test_a_tool_is_given_the_password_that_its_result_does_not_show() -> None:
    given_: list[JsonObject] = []

    def log_in(arguments: JsonObject, _ctx: ToolContext) -> ToolResult:
        given_.append(arguments)
        return ToolResult("logged in", data={"as": arguments, "all": [arguments]})

    redactor, login = Redactor(), {"user": "anna", "password": "hunter2"}
    call = redact_completion(Completion("", (ToolCall("1", "log_in", login),)), redactor).tool_calls[0]
    assert redact_arguments(call.arguments, redactor) == (login, 0)
    tool = Tool(ToolSpec("log_in", "Logs in.", {"type": "object"}, "read"), log_in)
    result = call_redacted(redactor, tool, call.arguments, ToolContext("run-1", 10.0**10, lambda _ref: None))
    masked = {"user": "anna", "password": MASK}
    assert given_ == [login]
    assert result.data == {"as": masked, "all": [masked]}


def test_a_model_s_text_loses_known_values_alone() -> None:
    mask = Redactor([KEY])
    assert mask.redact_known(f"{KEY} and sk-proj-abcDEF0123456789abcdef").text == (
        f"{MASK} and sk-proj-abcDEF0123456789abcdef"
    )
    mask.learn("another-4711")
    assert mask.redact_known("another-4711").text == MASK
    mask.learn("short")
    assert mask.redact_known("short").text == "short"


BAIT = {
    "plain": "the quick brown fox; token: 'x' = 12345\n",
    "the beginning of a key": "sk-",
    "names without end": "token=aaaaaaaaaaaaa ",
    "quotes": 'password="',
    "blocks that never end": "-----BEGIN PRIVATE KEY-----\n",
    "headers": "authorization: ",
    "addresses": "http://a:",
    "letters": "äöüß",
}


@pytest.mark.parametrize("what", BAIT)
def test_012_masking_takes_time_in_proportion(what: str) -> None:
    mask, took = Redactor([KEY]), []
    mask.redact_text("warm")
    for size in (150_000, 1_500_000):
        text = BAIT[what] * (size // len(BAIT[what]))
        began = time.process_time()
        mask.redact_text(text)
        took.append(time.process_time() - began)
    assert took[1] < max(0.2, took[0] * 25)  # ten times the text; a square would be a hundred times


RECORDS = {
    "nested": ("a.yaml", lambda n: "".join(f"{'  ' * i}secrets:\n" for i in range(n))),
    "nested in braces": ("a.json", lambda n: '{"secrets":' * n),
    "nested in lists": ("a.json", lambda n: '{"secrets":[{"a":' * n),
    "Kubernetes Secrets": ("a.json", lambda n: '{"kind":"Secret","data":{"a":' * 10 * n),
}


@pytest.mark.parametrize("what", RECORDS)
def test_records_in_records_take_bounded_work(what: str) -> None:
    """Counted in calls, of which each record of records that is looked at to its end takes one a line."""
    path, write = RECORDS[what]
    calls = [count_calls(partial(Redactor().mask_file, path, write(n).encode())) for n in (125, 500)]
    assert calls[1] < calls[0] * 6, calls  # four times the records; a square would be sixteen times


def test_of_the_lines_of_records_in_records_few_are_looked_at_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[int] = []
    not_deeper = secret_records._not_deeper

    class CountedPattern(NamedTuple):
        column: int

        def finditer(self, text: bytes, at: int) -> Iterator[re.Match[bytes]]:
            for found in not_deeper(self.column).finditer(text, at):
                scanned.append(found.end() - at)
                at = found.end()
                yield found
            scanned.append(len(text) - at)

    monkeypatch.setattr(secret_records, "_not_deeper", CountedPattern)
    text = RECORDS["nested"][1](600).encode()
    Redactor().mask_file("a.yaml", text)
    assert len(text) < sum(scanned) < 60 * len(text)  # if each was looked at to its end: 300 times


def test_of_a_record_of_secrets_so_many_members_are_judged() -> None:
    """What lies behind them is masked unseen: no list of millions of spans is made."""
    text = "secrets:\n" + "  a: 1\n" * MAX_JUDGED_MEMBERS + "  b: 1\n  c: 1\nd: keep\n"
    shown = Redactor().mask_file("a.yaml", text.encode()).masked_content.decode()
    assert shown.endswith("  a: [secret]\n  [secret]\n  [secret]\nd: keep\n")


def test_012_no_value_is_split_in_more_than_one_way_while_it_is_judged() -> None:
    """Of a pattern that could split it in many ways, 25 dashes alone take seconds."""
    began = time.process_time()
    assert Redactor().redact_text(f'api_key = "a{"-" * 25}!1"').count == 1
    assert time.process_time() - began < 0.5


def test_masked_files_are_remembered_within_a_bound_of_bytes() -> None:
    mask, small = Redactor(), b"password=b1\n" * 10
    large = small + b"x\n" * (CACHED_BYTES // 4)
    assert mask.mask_file("a.conf", small) is mask.mask_file("a.conf", small)
    first = mask.mask_file("a.conf", large)
    assert mask.mask_file("a.conf", large) is first
    mask.mask_file("b.conf", large + b"y")
    mask.mask_file("c.conf", large + b"z")
    assert mask.mask_file("a.conf", large) is not first


FILLER = b"x\n" * (PIECE_BYTES // 2)


def test_the_secrets_of_a_large_file_take_little_memory() -> None:
    content = FILLER + b"pwd=a1\n" * 5_000
    Redactor().mask_file("a.conf", content[:-1])  # what is compiled once
    tracemalloc.start()
    try:
        masked = Redactor().mask_file("a.conf", content)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert masked.masked_content[PIECE_BYTES:] == b"pwd=[secret]\n" * 5_000
    assert kept < 60 * 5_000  # as a list of pairs they take 128 bytes each


def test_places_are_counted_through_all_pieces_of_a_file() -> None:
    begun = b"pwd=a1\n" * MAX_JUDGED
    content = (begun + FILLER)[: 2 * PIECE_BYTES] + b"pwd=true\n"
    assert Redactor().mask_file("a.conf", content).masked_content.endswith(b"\npwd=[secret]\n")
    assert Redactor().mask_file("a.conf", content[7:]).masked_content.endswith(b"\npwd=true\n")


def test_masking_ends_with_a_piece_once_its_time_is_over() -> None:
    answers, content = iter((False, True)), b"pwd=a1\n" + 3 * FILLER
    masked = Redactor().mask_file("a.conf", content, lambda: next(answers))
    assert masked.content == content[: 2 * PIECE_BYTES]
    assert masked.masked_content.startswith(b"pwd=[secret]\nx\n")
    mask = Redactor()
    assert len(mask.mask_file("a.conf", content, lambda: True).content) == PIECE_BYTES
    assert len(mask.mask_file("a.conf", content).content) == len(content)  # what was cut off is not remembered


@pytest.mark.parametrize("shift", [-40, -9, -3, 0])
@pytest.mark.parametrize("kind", ["a.conf", "a.py", ".env"])
def test_a_secret_that_crosses_the_end_of_a_piece_is_masked_once(kind: str, shift: int) -> None:
    secret = f"{KEY}-{'a1B2' * 9}"
    before = "x\n" * ((PIECE_BYTES + shift) // 2)
    masked = Redactor([KEY]).mask_file(kind, f"{before}API_PASSWORD={secret}\nx\n".encode())
    assert masked.masked_content.decode().replace(MASK, "x").endswith("x\nAPI_PASSWORD=x\nx\n")


@pytest.mark.slow
def test_three_files_of_secrets_are_searched_in_time_and_memory(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}.conf").write_bytes(b"pwd=a1\n" * (WINDOW_BYTES // 7))
    script = """
import resource, sys, time
from pathlib import Path
from types import SimpleNamespace
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.paths import Scopes
from kairos_mcp.tools.files.content_hash import plain_hash
from kairos_mcp.tools.files.edit_tools import EditRules
from kairos_mcp.tools.files.search_tool import make_tools
from kairos_mcp.tools.files.workspace import Workspace
(tool,) = make_tools(EditRules(Workspace(Path(sys.argv[1])), Scopes(), 1, Redactor(), plain_hash))
for seconds in 2, 60:
    ctx = SimpleNamespace(deadline=time.monotonic() + seconds, is_hidden=None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = tool.run({"pattern": "zzzz"}, ctx).data
    late = time.monotonic() - ctx.deadline
    print(data["partial"], round(late, 1), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    (cut, late, _), (_, _, megabytes) = (line.split() for line in done.stdout.splitlines())
    assert cut == "True"
    assert float(late) < 2
    assert int(megabytes) < 100
