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

TRICKY_VALUES = ("$x9Kquagga", "#quagga9zebra", "[secret]quagga9zebra")  # as a reference, a comment, what is masked
_WORDLIKE = """
    hunter2secret9 secret9 9secret password1 Password! token-2 key_7 my.token.8 x-secret-9 correct-horse-key tokenhunter
    real-secret-token example9 an-example-7 test testname9 name1 changeme9 changeme! your-secret9 xxx9 true9 none-2
    string7 todo4 secret.hunter a:secret $uper_secret $hunter2secret ${HOME}x9 {hunter2} [hunter2] ~hunter!9 %41bc9
    47114711 env-9 vault.zebra op:hunter x9://secret #secret9 /hunter2
"""
WORDLIKE_VALUES = tuple(_WORDLIKE.split())  # that hold, begin with or end like words of a name or a placeholder
PLACES = {  # of credentials, in which any value is one
    "a user of curl": ("Makefile", "x:\n\tcurl -u anna:{value} h.example\n"),
    "a user of curl with other flags": ("run.sh", "curl -fsSu anna:{value} h.example\n"),
    "a user of curl that is a reference": ("run.sh", 'curl -u "$USER:{value}" h.example\n'),
    "a user of curl that is an address": ("run.sh", "curl --user='anna@h.example:{value}' h.example\n"),
    "a user of a domain": ("run.sh", "curl --ntlm -u 'CORP\\anna:{value}' h.example\n"),
    "a user of httpie": ("run.sh", "http -a anna:{value} h.example\n"),
    "an address": ("run.sh", "get https://anna:{value}@h.example/x\n"),
    "a header": ("run.sh", "get -H 'X-Api-Key: {value}' h.example\n"),
    "a header with a scheme": ("run.sh", "get -H 'Authorization: Bearer {value}' h.example\n"),
    "an option": ("run.sh", "tool --password '{value}' run\n"),
    "an option with a sign": ("run.sh", "tool --password={value}\n"),
    "mysql": ("run.sh", "mysql -u me -p{value} db\n"),
    "mysql, in quotes, on the next line": ("run.sh", "mysql -u me \\\n  -p'{value}' db\n"),
    "sshpass": ("run.sh", "sshpass -p {value} ssh h\n"),
    "yaml": ("a.yaml", 'password: "{value}"\n'),
    "a key of yaml": ("a.yaml", 'api_key: "{value}"\n'),
    "a Makefile": ("Makefile", "DB_PASSWORD := {value}\n"),
    "json": ("a.json", '{{"secret": "{value}"}}\n'),
    "a directive": ("redis.conf", "requirepass {value}\n"),
    "a file alone": ("secrets/db_password", "{value}\n"),
    "a default": ("a.properties", "db.password=${{X:{value}}}\n"),
    "a default behind another reference": ("run.sh", "PASSWORD=${{A}}-${{B:-{value}}}\n"),
    "a default in a template": ("a.yaml", "password: {{{{ .x | default '{value}' }}}}\n"),
    "a text in a template": ("a.yaml", "password: {{{{ '{value}' | quote }}}}\n"),
    "an alternative in a template": ("a.yaml", "password: ${{{{ secrets.X || '{value}' }}}}\n"),
}
SHOWN_VALUES = (  # that are no secret in these places
    *(
        "$DB_PASSWORD",
        "$$DB_PASSWORD",
        "$db_password",
        "${DB_PASSWORD}",
        "${X:-}",
        "$(cat/run/x)",
        "{{vault_password}}",
    ),
    *(
        "<password>",
        "<your-token>",
        "xxxx",
        "changeme",
        "change-me",
        "your-password",
        "YOUR_API_KEY",
        "password",
        "***",
    ),
    *("%(password)s", "{password}"),
)
PLACES_SHOWN = (
    "a user of curl",
    "a user of httpie",
    "yaml",
    "a key of yaml",
    "a Makefile",
    "json",
    "an option with a sign",
)


def may_stand(place: str, value: str) -> bool:
    """Whether a value can be written in a place as it is."""
    text = PLACES[place][1]
    if place == "a header":
        return "[" not in value
    if place == "an address":
        return "#" not in value and not value.startswith(("/", "$", "x9"))
    if "{{{{" in text or "${{" in text:
        return not set("{}$") & set(value)
    shell = text.endswith("db\n") or "-u anna:" in text or "sshpass" in text
    return not (shell and set("#[{~") & set(value)) or "'" in text


LINES = {  # that hold WORD; each for a file of settings and for one of code or prose
    "a user of curl": f"curl -u me:{WORD} https://h.example/\n",
    "a user of curl, in quotes": f'curl --user "me:{WORD}" https://h.example/\n',
    "a user in a list": f'run(["curl", "-u", "me:{WORD}"])\n',
    "a user of a database": f"CREATE USER me IDENTIFIED BY '{WORD}';\n",
    "a role of a database": f"ALTER ROLE me WITH LOGIN PASSWORD '{WORD}';\n",
    "sshpass": f"sshpass -p {WORD} ssh h\n",
    "mysql": f"mysql -u me -p{WORD} db\n",
    "docker login": f"docker login -u me -p {WORD}\n",
    "chpasswd": f"echo 'me:{WORD}' | chpasswd\n",
    "kubectl": f"kubectl create secret generic x --from-literal=a={WORD}\n",
    "PowerShell": f'$x = ConvertTo-SecureString -String "{WORD}" -AsPlainText -Force\n',
    "PowerShell, without quotes": f"ConvertTo-SecureString {WORD} -AsPlainText\n",
    "PowerShell, by a pipe": f"'{WORD}' | ConvertTo-SecureString -AsPlainText\n",
    "a cookie of curl": f"curl -b 'session={WORD}' h.example\n",
    "a certificate of curl": f"curl -E me.pem:{WORD} h.example\n",
    "a bearer of curl": f"curl --oauth2-bearer {WORD} h.example\n",
    "a here-string": f"docker login -u me --password-stdin <<< {WORD}\n",
    "printf": f"printf '%s' {WORD} | gh auth login --with-token\n",
    "twine": f"twine upload -u me -p {WORD} dist/a\n",
    "ssh-keygen": f"ssh-keygen -t ed25519 -N {WORD} -f k\n",
    "openssl": f"openssl enc -aes-256-cbc -k {WORD}\n",
    "SNMP": f"snmpget -v3 -u me -A {WORD} h\n",
    "Vault": f"vault login {WORD}\n",
    "FreeRDP": f"xfreerdp /u:me /p:{WORD} /v:h\n",
    "a user of Windows": f"net user me {WORD} /add\n",
    "secrets of .NET": f"dotnet user-secrets set 'Db:Password' '{WORD}'\n",
    "a keychain": f"security add-generic-password -a me -w {WORD}\n",
    "zip, with other flags": f"unzip -oP {WORD} a.zip\n",
    "mongosh": f"mongosh -u me -p {WORD} h\n",
    "mosquitto": f"mosquitto_pub -h h -u me -P {WORD} -t x\n",
    "zip": f"zip -r -P {WORD} a.zip d\n",
    "7z": f"7z a -p{WORD} a.7z d\n",
    "lftp": f"lftp -u me,{WORD} h\n",
    "sqlplus": f"sqlplus -s me/{WORD}@h\n",
    "RabbitMQ": f"rabbitmqctl add_user me {WORD}\n",
    "Oracle": f'"jdbc:oracle:thin:me/{WORD}@h:1521:x"\n',
}

Form = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Planted:
    """A file with a secret in it: no part of a result, a row or a log may hold one of `traces`."""

    path: str
    text: str
    traces: tuple[str, ...]
    alone: bool = False  # what stands before it changes what it is


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
    "env of another name": ("prod.env", lambda name, value: f"PLAIN={value}\nX=\n"),
    "yaml, a pair": (
        "a.yaml",
        lambda name, value: f"env:\n  - name: {name}\n    value: {_quoted(value)}\n  - name: X\n",
    ),
    "yaml, a pair turned": (
        "a.yaml",
        lambda name, value: f"env:\n- value: {_quoted(value)}\n  name: {name}\n- name: X\n",
    ),
    "json, a pair": ("a.json", lambda name, value: _json({"env": [{"name": name, "value": value}, {"name": "X"}]})),
    "json, a pair turned": ("a.json", lambda name, value: _json([{"x": 1, "value": value, "name": name}])),
    "json, a record": ("a.json", lambda name, value: _json({name: {"type": "string", "value": value}, "x": 1})),
    "json, a list": ("a.json", lambda name, value: _json({name: [value, value], "x": 1})),
    "json, a letter escaped": ("a.json", lambda name, value: f'{{"{_escaped(name)}": {_quoted(value)}}}\n'),
    "yaml, a record": ("a.yaml", lambda name, value: f"{name}:\n  type: x\n  default: {_quoted(value)}\nx: 1\n"),
    "yaml, on the next line": (
        "a.yaml",
        lambda name, value: f"db:\n  {name}:  # mine\n    {value}\n    {value}\nx: 1\n",
    ),
    "yaml, tagged": ("a.yaml", lambda name, value: f"{name}: !vault {value}\n{name}: &a {value}\n"),
    "yaml, folded": ("a.yaml", lambda name, value: f"{name}: {value}\n  {value}\nx: 1\n"),
    "yaml, a long block": ("a.yaml", lambda name, value: f"{name}: |\n" + f"  {value}\n" * 70 + "x: 1\n"),
    "toml, a long text": ("a.toml", lambda name, value: f'{name} = """\n' + f"{value}\n" * 70 + '"""\nx = 1\n'),
    "wide blanks": ("a.yaml", lambda name, value: f"{name}\u00a0\uff1a\u3000{value}\n"),
    "xml, attributes": ("web.config", lambda name, value: f'<a><add key="{name}" value="{value}"/></a>\n'),
    "xml, an element of a name": ("a.xml", lambda name, value: f'<entry key="{name}">{value}</entry>\n'),
    "xml, two elements": ("a.xml", lambda name, value: f"<name>{name}</name>\n<value>{value}</value>\n"),
    "xml, raw": ("a.xml", lambda name, value: f"<{name}>\n  <![CDATA[{value}]]>\n</{name}>\n"),
    "terraform": ("a.tf", lambda name, value: f'variable "{name}" {{\n  default = {_quoted(value)}\n}}\n'),
    "toml, a table of secrets": ("a.toml", lambda name, value: f"[db.secrets]\nx = {_quoted(value)}\n[b]\ny = 1\n"),
    "ini, a table of secrets": ("a.ini", lambda name, value: f"[secrets]\nof mine = {_quoted(value)}\n\n[b]\ny = 1\n"),
    "yaml, the second record of a list of secrets": (
        "a.yaml",
        lambda name, value: f"secrets:\n  - x: 1a\n    y:\n      z: 1\n  - x: {_quoted(value)}\nb: 1\n",
    ),
    "json, the second record of a list of secrets": (
        "a.json",
        lambda name, value: _json({"secrets": [{"x": "1a", "y": {}}, {"x": value}], "y": 1}),
    ),
    "yaml, a list of several lines": (
        "a.yaml",
        lambda name, value: f"{name}: [\n  {_quoted(value)},\n  x9{WORD},\n]\ny: 1\n",
    ),
    "yaml, a key that is said to be one": ("a.yaml", lambda name, value: f"? {name}\n: {_quoted(value)}\nb: 1\n"),
    "a name with a blank": ("a.ini", lambda name, value: f"API key = {value}\nDB password (old): {value}\n"),
    "a Kubernetes Secret in one line": (
        "a.json",
        lambda name, value: json.dumps({"kind": "Secret", "data": {"x": value}, "y": {"z": 1}}, ensure_ascii=False),
    ),
    "a Kubernetes Secret in one line, turned": (
        "a.json",
        lambda name, value: json.dumps({"stringData": {"x": value}, "kind": "Secret"}, ensure_ascii=False),
    ),
    "a table": ("a.csv", lambda name, value: f'id,{name},x\n1,"{value}",y\n2,"{value}",y\n'),
    "pgpass": (".pgpass", lambda name, value: f"h:5432:*:me:{value}\n"),
    "netrc": (".netrc", lambda name, value: f"machine h\n  login me\n  password {_quoted(value)}\n"),
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
    "an argument": (
        "wp-config.php",
        lambda name, value: f"define('{name}', '{value}');\n",
        ("DB_PASSWORD", "AUTH_KEY", "dbpassword"),
        VALUES[:2],
    ),
    "a member of a connection string": (
        "a.cs",
        lambda name, value: f'c = "Server=h;User Id=me;{name}={value};Trusted=yes";\n',
        ("Password", "PWD"),
        (WORD, MIXED),
    ),
    "a parameter": ("a.java", lambda name, value: f'"jdbc:x://h/d?{name}={value}&a=b"\n', STRONG_NAMES, (WORD,)),
    "joined pieces": (
        "a.js",
        lambda name, value: f'{name} = "{value}" +\n  "{value}"\n',
        ("DB_PASSWORD", "password"),
        VALUES[:2],
    ),
    "a call that sets": (
        "a.java",
        lambda name, value: f'source.set{name}("{value}");\n',
        ("Password", "DbPassword", "_passphrase"),
        VALUES[:2],
    ),
    "a call that sets a key": ("a.kt", lambda name, value: f'with{name}("{value}")\n', ("Token", "ApiKey"), (MIXED,)),
    "a builder": ("a.java", lambda name, value: f'  .{name}("{value}")\n', ("password", "passwd"), (WORD, MIXED)),
    "a call that checks": (
        "a.py",
        lambda name, value: f'if check_{name}("{value}", user):\n    pass\n',
        ("password", "passphrase"),
        (WORD, MIXED),
    ),
    "a call that sets one of two": (
        "a.py",
        lambda name, value: f'set_{name}("anna", "{value}")\n',
        ("password", "db_passwd"),
        (WORD, MIXED),
    ),
    "a login": (
        "a.py",
        lambda name, value: f'{name}("anna", "{value}")\n',
        ("login", "signIn", "HTTPBasicAuth"),
        (MIXED,),
    ),
    "a list in code": (
        "a.py",
        lambda name, value: f'{name} = ["{value}", "x"]\n',
        ("passwords", "PASSWORDS"),
        VALUES[:2],
    ),
    "an image": ("a.md", lambda name, value: f"ENV {name} {value}\n", ("DB_PASSWORD",), (WORD, MIXED)),
}


def list_planted() -> Iterator[tuple[str, Planted]]:
    """Yield every form with every name and value that it can have, each with a name for it."""
    for form, (path, write) in SETTINGS.items():
        for name in NAMES:
            for value in VALUES:
                if not (form == "xml" and "<" in value) and not (form.startswith("shell") and '"' in value):
                    planted = Planted(path, write(name, value), _traces(value), alone=form == "a table")
                    yield f"{form}, {name}, {value}", planted
    for form, (path, write, names, values) in SOURCES.items():
        for name in names:
            for value in values:
                yield f"{form}, {name}, {value}", Planted(path, write(name, value), _traces(value))
    yield from _list_others()
    for path in ("a.py", "a.yaml", "notes.txt"):
        yield f"an address in {path}", Planted(path, f"see https://me:{WORD}@h.example/x\n", (WORD,))
        for kind, key in _keys().items():
            yield from _list_keys(path, kind, key)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _escaped(name: str) -> str:
    """The name with its last letter as a number."""
    return f"{name[:-1]}\\u{ord(name[-1]):04x}"


def _list_others() -> Iterator[tuple[str, Planted]]:
    for value in TRICKY_VALUES:
        for form in ("yaml, quoted", "json", "toml", "ini", "properties"):
            path, write = SETTINGS[form]
            yield f"{form}, {value}", Planted(path, write("password", value), (value, "quagga"))
        yield f"a variable, {value}", Planted("a.py", f'DB_PASSWORD = "{value}"\n', (value, "quagga"))
    for place, (path, line) in PLACES.items():
        for value in WORDLIKE_VALUES:
            if may_stand(place, value):
                yield f"{place}, {value}", Planted(path, line.format(value=value), (value,), alone="/" in path)
    for form, line in LINES.items():
        for path in ("run.sh", "a.md"):
            yield f"{form} in {path}", Planted(path, f"x\n{line}y\n", (WORD,))
    coded = base64.b64encode(f"me:{WORD}".encode()).decode()
    yield (
        "a token in the place of a user",
        Planted("run.sh", "git clone https://hunter2secret9@h/a\n", ("hunter2secret9",)),
    )
    yield "a login of Docker", Planted("config.json", _json({"auths": {"h": {"auth": coded}}}), (coded,))
    yield "an env file below .envs", Planted(".envs/prod", f"A={WORD}\n", (WORD,))
    for path in ("secrets/db_password", ".vault-token"):
        yield f"the file {path}", Planted(path, f"{WORD}\n", (WORD,), alone=True)


def _list_keys(path: str, kind: str, key: str) -> Iterator[tuple[str, Planted]]:
    lines = key.strip().split("\n")
    body = "\n".join(lines[1:-1])
    traces = tuple(line for line in lines[1:-1] if len(line) >= 16)
    yield f"{kind} in {path}", Planted(path, f"x\n{key}y\n", traces)
    yield f"{kind} without its first line in {path}", Planted(path, key.split("\n", 1)[1], traces)
    yield f"{kind} without its lines in {path}", Planted(path, f"{body}\n", traces)
    yield f"{kind}, indented, in {path}", Planted(path, "".join(f"    {line}\n" for line in lines), traces)
    yield f"{kind} in one line in {path}", Planted(path, f'"{key.strip()}"\n'.replace("\n", "\\n"), traces)
    coded = base64.b64encode(key.encode()).decode()
    yield f"{kind} in base64 in {path}", Planted(path, f"client-key-data: {coded}\n", (coded[:80], coded[100:140]))
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
