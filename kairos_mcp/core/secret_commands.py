"""Find secrets in what is typed or run: options, logins, directives of configuration files, and statements of SQL.

option    = `--NAME VALUE`, `-e NAME=VALUE`
user      = `-u USER:VALUE`, `--user USER:VALUE`
command   = `sshpass -p VALUE`, `mysql -pVALUE`, `docker login -p VALUE` and the like: a fixed list
login     = `login USER password VALUE`
directive = a line that is NAME and VALUE alone, as in `requirepass VALUE`; in a Dockerfile `ENV NAME VALUE`
statement = `IDENTIFIED BY 'VALUE'`, `CREATE USER … PASSWORD 'VALUE'`
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kairos_mcp.core.secret_quotes import PREFIX, find_quoted
from kairos_mcp.core.secret_spans import Span, line_end, line_start, to_end
from kairos_mcp.core.secret_values import STRONG, WEAK, is_set_secret, is_setting, looks_like_key

_END = rf"(?:{STRONG}|{WEAK})(?:[_-]?[0-9]{{1,3}})?"
_ON = r"(?:[^\r\n|;&]|\\\r?\n)*?[ \t\"',\[]"  # the command goes on, perhaps on the next line
_SEP = r"[\"',]*[ \t]*,?[ \t]*"  # between two words, of a command line or of a list of texts
OPTION = rf"(?i)(?:^|[\s\"'`(])--?[a-z0-9-]{{0,40}}?(?:{STRONG}|{WEAK})[\"',]*[ \t]+(.)"
LOGIN = r"(?i)\b(?:login|user)[ \t]+\S+\s+(?:insecure-)?password[ \t]+(\S+)"
DOCKER = rf"(?mi)^[ \t]*(?:ENV|ARG)[ \t]+[A-Z0-9_.-]{{0,60}}?(?:{STRONG}|{WEAK})(?:_?[0-9]{{1,3}})?[ \t]+([^\s=])"
USER = (
    r"(?:^|[\s\"'\[,(])(-[a-zA-Z]{0,8}[uU]|-a|--user|--proxy-user|--userpwd|--http-user|--auth)(?:=|"
    rf"{_SEP})[\"']?([^\s:\"'/,=-][^\s:\"'/,=]*)[:%]([^\s\"',])"
)
COMMANDS = (  # the one group of each is where its value begins
    rf"\bsshpass\b{_ON}-p{_SEP}(\S)",
    rf"\b(?:mysql|mysqldump|mysqladmin|mariadb)\b{_ON}-p([^\s\"',]|[\"'][^\s\"',\]])",
    rf"\b(?:docker|podman|helm|az|oc|nerdctl|buildah|skopeo)\b{_ON}login\b{_ON}-p{_SEP}(\S)",
    rf"\bredis-cli\b{_ON}-a{_SEP}(\S)",
    rf"\bldap[a-z]+\b{_ON}-w{_SEP}(\S)",
    rf"\bhtpasswd\b{_ON}-[a-zA-Z]*b[a-zA-Z]*[ \t]+\S+[ \t]+\S+[ \t]+(\S)",
    r"[ \t\"']-pass(?:in|out)?[\"',]*[ \t]+[\"']?"
    r"pass:(\S)",
    r"\becho[ \t]+(?:-n[ \t]+)?[\"']?[^\s:\"'$]+:([^\s\"'$][^\s\"']*)[\"']?[ \t]*\|[ \t]*(?:sudo[ \t]+)?chpasswd",
    r"\b(?:echo|printf)[ \t]+(?:-n[ \t]+|[\"']?%s(?:\\n)?[\"']?[ \t]+)?([^\s|-][^|\r\n]*)\|[ \t]*"
    r"(?:sudo[ \t]+-S|[^|\r\n]*(?:--password-stdin|--with-token)|[^|\r\n]*passwd[ \t]+--stdin)",
    r"--from-literal(?:=|[ \t]+)[\"']?[\w.-]+=(\S)",
    rf"(?i)(?:config(?:ure)?[ \t]+set|setenv|setx|set[ \t]+-[a-z]+)[ \t]+(?:-[a-z-]+[ \t]+)*[^\s=]*{_END}[ \t]+(\S)",
    r"(?i)\bConvertTo-SecureString[ \t]+(?:-[a-z]+[ \t]+){0,4}([^\s$-])",
    r"(?i)([\"'][^\"'\r\n]+[\"'])[ \t]*\|[ \t]*ConvertTo-SecureString",
    rf"\b(?:mongo(?:sh|dump|restore|export|import)?|cqlsh|clickhouse-client)\b{_ON}-p{_SEP}([^\s-])",
    rf"\b(?:mosquitto_(?:pub|sub|rr)|sqlcmd|bcp|ipmitool|zip|unzip)\b{_ON}-[a-z]{{0,4}}P{_SEP}(\S)",
    rf"\b(?:twine|ncftp[a-z]+|rdesktop)\b{_ON}-p{_SEP}(\S)",
    rf"\bcurl\b{_ON}(?:-b|--cookie)[ \t=]*[\"']?[\w.-]+=(\S)",
    rf"\bcurl\b{_ON}(?:-E|--cert)[ \t=]*[\"']?[^\s:\"']+:(\S)",
    rf"\b(?:curl\b{_ON}--oauth2-bearer[ \t=]+|x?freerdp\b{_ON}/p:)(\S)",
    rf"\b(?:ssh-keygen\b{_ON}-[NP]|openssl[ \t]+enc\b{_ON}-k|snmp[a-z]+\b{_ON}-[AX]){_SEP}(\S)",
    rf"\bsecurity[ \t]+add-[a-z-]+{_ON}-w{_SEP}(\S)",
    r"\bvault[ \t]+login[ \t]+([^\s-])",
    r"(?i)\bnet[ \t]+user[ \t]+[^\s/]+[ \t]+([^\s/])",
    rf"(?i)\buser-secrets[ \t]+set[ \t]+[\"']?[\w:.-]*{_END}[\"']?[ \t]+(\S)",
    r"(?:--password-stdin|--with-token|--stdin|chpasswd)[ \t]*<<<[ \t]*(\S)",
    rf"\b7za?\b{_ON}-p([^\s\"',])",
    rf"\blftp\b{_ON}-u{_SEP}[^\s,]+,(\S)",
    r"\bsqlplus[ \t]+(?:-\S+[ \t]+)*[^\s/\"'@]+/([^\s@\"'/])",
    r"\brabbitmqctl[ \t]+(?:add_user|change_password)[ \t]+\S+[ \t]+(\S)",
    r"(?i)jdbc:oracle:[a-z]+:[^\s/\"'@]+/([^\s@\"']+)@",
)
DIRECTIVE = (
    rf"(?mi)^[ \t]*(?:set[ \t]+)?([A-Za-z0-9_.-]*(?:{_END}|requirepass|masterauth|auth_pass))[ \t]+"
    r"(\S+)[ \t]*;?[ \t]*\r?$"
)
STATEMENT = (
    r"(?i)\bidentified\s+(?:(?:with|via)\s+\S+\s+)?(?:by|using|as)\s+(?:password\s+)?([\"'])",
    r"(?i)\b(?:create|alter)\s+(?:role|user|login)\s[^;]*?\bpassword\s*=?\s*N?([\"'])",
    r"(?i)\bset\s+password\b[^;=]*=\s*(?:password\s*\(\s*)?([\"'])",
)
_WHOLE_REFERENCE = rb"\$\{{1,2}[^{}\r\n]{0,200}\}{1,2}"
_OPTION_VALUE = re.compile(rb"(?:" + _WHOLE_REFERENCE + rb"|[^\s\"'`,;|)\]}]){1,800}+")
_OPTION_REST = re.compile(rb"[^\s\"'`,;|)\]}]*")
_WORD = re.compile(rb"(?:" + _WHOLE_REFERENCE + rb"|[^\s\"'`|)\]}]){1,800}+")
_WORD_REST = re.compile(rb"[^\s\"'`|)\]}]*")
_IS_OF_USERS = re.compile(  # commands whose `-u` takes a user and a group, or no user at all
    rb"\b(?:docker|podman|nerdctl|compose|chown|kubectl|systemd-run|runuser|setpriv|install|sudo|chpst|git)\b"
)
_ASKS_BY_HTTP = re.compile(rb"\b(?:https?|xhs?|httpie)\b")  # whose `-a` takes a login
_SCHEME_OR_DRIVE = re.compile(rb"[A-Za-z]|https?|ssh|git|file|ftp|[a-z]+\+[a-z]+")
_BEFORE_USER = 400  # bytes of a line in which the command is looked for
_USER_VALUES = {
    b"": re.compile(rb"[^\s\"',]*"),
    b'"': re.compile(rb"[^\"\r\n]*"),
    b"'": re.compile(rb"[^'\r\n]*"),
}
_KNOWN_DIRECTIVES = re.compile(rb"(?i)requirepass|masterauth|auth_pass|bindpw|rootpw|.*password")


def judge_option(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    begins = match.start(1)
    if (opened := PREFIX.match(text, begins)) is not None:
        start, end = find_quoted(text, opened, False)
    else:
        found = _OPTION_VALUE.match(text, begins)
        if found is None:
            return ()
        start, end = found.span()
    value = text[start:end].decode("utf-8", "replace")
    if value.startswith("-") or not is_setting(value):
        return ()
    if opened is not None:
        return ((start, end),)
    is_secret = settings or looks_like_key(value, quoted=False)
    return (to_end(text, (start, end), _OPTION_REST),) if is_secret else ()


def judge_user(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read the password of `-u USER:VALUE`, but not the group of `docker run -u USER:GROUP`."""
    option, user, begins = match.group(1), match.group(2), match.start(3)
    before = text[max(line_start(text, match.start()), match.start() - _BEFORE_USER) : match.start() + 1]
    quoted = text[match.start(2) - 1 : match.start(2)]
    found = _USER_VALUES.get(quoted, _USER_VALUES[b""]).match(text, begins)
    value = b"" if found is None else found.group()
    are_ids = user.isdigit() and value.isdigit()
    is_place = value.startswith((b"//", b"\\")) and _SCHEME_OR_DRIVE.fullmatch(user)
    if found is None or are_ids or is_place or _IS_OF_USERS.search(before):
        return ()
    if option == b"-a" and not _ASKS_BY_HTTP.search(before):
        return ()
    return (found.span(),) if is_setting(value.decode("utf-8", "replace")) else ()


def judge_command(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read the word in which a command takes a secret."""
    begins = match.start(match.lastindex)
    if (opened := PREFIX.match(text, begins)) is not None:
        start, end = find_quoted(text, opened, False)
    elif (found := _WORD.match(text, begins)) is not None:
        start, end = found.span()
    else:
        return ()
    rest = to_end(text, (start, end), _WORD_REST) if opened is None else (start, end)
    return (rest,) if is_setting(text[start:end].decode("utf-8", "replace")) else ()


def judge_statement(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    opened = PREFIX.match(text, match.start(match.lastindex))
    if opened is None:
        return ()
    start, end = find_quoted(text, opened, False)
    return ((start, end),) if is_setting(text[start:end].decode("utf-8", "replace")) and start < end else ()


def judge_login(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    value = match.group(1).decode("utf-8", "replace")
    return (match.span(1),) if settings and is_setting(value) else ()


def judge_directive(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """Read a line of two words in settings. Two words of prose, as `Token expired`, are none."""
    value = match.group(2).decode("utf-8", "replace")
    known = _KNOWN_DIRECTIVES.fullmatch(match.group(1)) is not None and match.group(1).islower()
    if not settings or value[0] in "=:" or value == "-" or not (known or looks_like_key(value, quoted=True)):
        return ()
    start, end = match.span(2)
    end = start + len(text[start:end].removesuffix(b";"))
    return ((start, end),) if is_setting(value.removesuffix(";")) else ()


def judge_docker(text: bytes, match: Any, settings: bool) -> Iterable[Span]:
    """The value of `ENV NAME VALUE`, which may have blanks."""
    start = match.start(1)
    end = line_end(text, start)
    value = text[start:end].decode("utf-8", "replace").strip()
    return ((start, end),) if is_setting(value) and (settings or is_set_secret(value)) else ()
