"""What the word means with which a provider says how a reply ended: each has its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from kairos_mcp.core.messages import Finish

Meaning = Finish | Literal["broken", "paused", "unknown"]
"""`broken`: the server broke off. `paused`: the turn may go on, and nothing was cut off."""

_WORDS: Mapping[Meaning, str] = {
    "stop": (
        "stop stopped endturn end eos eostoken stopsequence stoptoken complete completed finish finished done success"
        " normal"
    ),
    "tool_calls": "toolcalls toolcall tooluse functioncall functioncalls",
    "length": (
        "length maxlength maxtokens maxoutputtokens maxcompletiontokens maxnewtokens tokenlimit limit errorlimit"
        " modellength truncated modelcontextwindowexceeded contextlength contextlengthexceeded contextwindow"
        " contextwindowexceeded"
    ),
    "content_filter": (
        "contentfilter contentfiltered contentmoderation contentpolicy filtered moderation safety imagesafety"
        " guardrailintervened sensitive recitation blocklist blocked prohibitedcontent spii language errortoxic"
    ),
    "refusal": "refusal refused",
    "broken": (
        "error failed failure abort aborted cancelled canceled usercancel interrupted timeout deadlineexceeded"
        " overloaded serverbusy networkerror internalerror servererror insufficientsystemresource"
        " malformedfunctioncall malformedresponse malformedtooluse malformedmodeloutput unexpectedtoolcall"
        " toomanytoolcalls missingthoughtsignature unexpectedstate"
    ),
    "paused": "pauseturn compaction",
}
_MEANINGS: Mapping[str, Meaning] = {word: meaning for meaning, words in _WORDS.items() for word in words.split()}


_NO_END = frozenset({"null", "none", "notfinished", "unfinished", "unspecified"})


def read_finish(word: object) -> Meaning | None:
    """Return what a finish reason means, whatever its case and separators; None where none is given."""
    if not isinstance(word := _name_of(word), str):
        return None if word is None else "unknown"
    # Gemini's door: `function_call_filter: MALFORMED_FUNCTION_CALL`.
    tried = (_plain(each) for each in (word, word.rpartition(":")[2]))
    return next((_MEANINGS[each] for each in tried if each in _MEANINGS), "unknown") if word.strip() else None


def is_end(word: object) -> bool:
    """Whether a finish reason says that a reply has ended: some servers send a word until then."""
    return bool(word) and _plain(str(_name_of(word))) not in _NO_END


def _name_of(word: object) -> object:
    """Return the word of a finish reason, which is an object with a type in SGLang's own form."""
    return word["type"] if isinstance(word, dict) and "type" in word else word


def _plain(word: str) -> str:
    return re.sub(r"[^a-z]", "", word.lower()).removeprefix("finishreason")
