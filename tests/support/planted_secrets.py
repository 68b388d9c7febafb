"""Secrets in each form of the grammar (core/secret_grammar.py), in files of each kind, for tests to plant."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

JOINED_NAMES = ("PGPASSWORD", "dbpassword", "rootpassword", "GPGPASSPHRASE", "userpasswd")
NAMES = (
    "password",
    "DB_PASSWORD",
    "dbPassword",
    "passwd",
    "smtp.passphrase",
    "app-secret",
    "API_KEY",
    "apiKey",
    "token",
    *JOINED_NAMES,
)
STRONG_NAMES = tuple(name for name in NAMES if re.search("passw|passphrase", name, re.IGNORECASE))
WORD, MIXED = "quaggazebra", "Zq7-okApi+4711"
VALUES = (WORD, MIXED, "quagga zebra okapi", "$quagga!zebra#9", "zebra; -- quagga", "qu'agga9zebra", "zébra-quagga 7")

Form = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Planted:
    """A file with a secret in it: no part of a result, a row or a log may hold one of `traces`."""

    path: str
    text: str
    traces: tuple[str, ...]


SETTINGS: dict[str, tuple[str, Form]] = {
    "yaml": ("a.yaml", lambda name, value: f"db:\n  {name}: {value}\n  x: 1\n"),
    "yaml, quoted": ("a.yml", lambda name, value: f"- {name}: {json.dumps(value, ensure_ascii=False)}  # mine\n"),
    "yaml, a block": ("a.yaml", lambda name, value: f"db:\n  {name}: |\n    {value}\n\n    {value}\n  x: 1\n"),
    "toml": ("a.toml", lambda name, value: f"{name.replace('.', '_')} = {json.dumps(value, ensure_ascii=False)}\n"),
    "toml, of several lines": ("a.toml", lambda name, value: f'{name} = """\n{value}\n{value}"""\nx = 1\n'),
    "ini": ("a.ini", lambda name, value: f"[db]\n{name} = {value}\nx = 1\n"),
    "properties": ("a.properties", lambda name, value: f"spring.{name}={value}\n"),
    "json": ("a.json", lambda name, value: json.dumps({"x": 1, name: value, "y": 2}, ensure_ascii=False)),
    "json, indented": ("a.json", lambda name, value: json.dumps({name: value}, ensure_ascii=False, indent=2)),
    "dockerfile": ("Dockerfile", lambda name, value: f"FROM x\nENV {name.replace('.', '_')} {value}\nRUN y\n"),
    "dockerfile, assigned": ("Dockerfile", lambda name, value: f"ARG {name}={json.dumps(value, ensure_ascii=False)}\n"),
    "shell": ("run.sh", lambda name, value: f"export {name}={json.dumps(value, ensure_ascii=False)}\nrun\n"),
    "shell, of several lines": ("run.sh", lambda name, value: f'{name}="x\n{value}\n"\nrun\n'),
    "a file without an ending": ("conf", lambda name, value: f"{name}: {value}\n"),
    "xml": ("a.xml", lambda name, value: f"<a><{name}>{value}</{name}></a>\n"),
    "env": (".env.local", lambda name, value: f"# mine\nPLAIN={value}\nX=\n"),
}
SOURCES: dict[str, tuple[str, Form, tuple[str, ...], tuple[str, ...]]] = {
    "a variable": (
        "a.py",
        lambda name, value: f'{name} = "{value}"\n',
        ("DB_PASSWORD", "JWT_SECRET", "PGPASSWORD"),
        VALUES[:3],
    ),
    "a variable in a line": (
        "a.md",
        lambda name, value: f"    {name}={value}\n",
        ("DB_PASSWORD", "PGPASSWORD"),
        (WORD, MIXED),
    ),
    "a quoted password": ("a.js", lambda name, value: f"connect({{{name}: '{value}'}})\n", STRONG_NAMES, VALUES[:2]),
    "a quoted key": ("a.go", lambda name, value: f'{name} := "{value}"\n', NAMES, (MIXED,)),
    "an image": ("a.md", lambda name, value: f"ENV {name} {value}\n", ("DB_PASSWORD",), (WORD, MIXED)),
}


def list_planted() -> Iterator[tuple[str, Planted]]:
    """Yield every form with every name and value that it can have, each with a name for it."""
    for form, (path, write) in SETTINGS.items():
        for name in NAMES:
            for value in VALUES:
                if not (form == "xml" and "<" in value) and not (form.startswith("shell") and '"' in value):
                    yield f"{form}, {name}, {value}", Planted(path, write(name, value), _traces(value))
    for form, (path, write, names, values) in SOURCES.items():
        for name in names:
            for value in values:
                yield f"{form}, {name}, {value}", Planted(path, write(name, value), _traces(value))
    for path in ("a.py", "a.yaml", "notes.txt"):
        yield f"an address in {path}", Planted(path, f"see https://me:{WORD}@h.example/x\n", (WORD,))
        for kind, key in _keys().items():
            yield from _list_keys(path, kind, key)


def _list_keys(path: str, kind: str, key: str) -> Iterator[tuple[str, Planted]]:
    lines = key.strip().split("\n")
    body = "\n".join(lines[1:-1])
    traces = tuple(line for line in lines[1:-1] if len(line) >= 16)
    yield f"{kind} in {path}", Planted(path, f"x\n{key}y\n", traces)
    yield f"{kind} without its first line in {path}", Planted(path, key.split("\n", 1)[1], traces)
    yield f"{kind} without its lines in {path}", Planted(path, f"{body}\n", traces)
    yield f"{kind}, indented, in {path}", Planted(path, "".join(f"    {line}\n" for line in lines), traces)
    yield f"{kind} in one line in {path}", Planted(path, f'"{key.strip()}"\n'.replace("\n", "\\n"), traces)
    yield f"{kind}, cut, in {path}", Planted(path, "\n".join(lines[: max(2, len(lines) // 2)]), traces)


def _keys() -> dict[str, str]:
    def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, how: str) -> str:
        form = getattr(serialization.PrivateFormat, how)
        return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()

    curve, edwards = ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()
    large = rsa.generate_private_key(65537, 2048)
    return {
        "RSA": pem(large, "TraditionalOpenSSL"),
        "PKCS8": pem(large, "PKCS8"),
        "OpenSSH": pem(edwards, "OpenSSH"),
        "EC": pem(curve, "TraditionalOpenSSL"),
    }


def _traces(value: str) -> tuple[str, ...]:
    """What may stand nowhere: the value, and its words, as they would remain if it was cut."""
    words = [word for word in (WORD, "quagga", "zebra", "Zq7", "zébra") if word in value]
    return tuple(dict.fromkeys((value, *words, json.dumps(value)[1:-1], base64.b64encode(value.encode()).decode())))
