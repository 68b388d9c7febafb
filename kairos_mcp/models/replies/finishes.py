"""What the word means with which a provider says how a reply ended: each has its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from kairos_mcp.core.messages import Finish

Meaning = Finish | Literal["broken", "paused", "unknown"]
"""`broken`: the server broke off. `paused`: the turn may go on, and nothing was cut off."""

_WORDS: Mapping[Meaning, str] = {
    "stop": "stop stopped endturn end eos eostoken stopsequence complete completed finish finished done success normal",
    "tool_calls": "toolcalls toolcall tooluse functioncall functioncalls",
    "length": (
        "length maxlength maxtokens maxoutputtokens maxcompletiontokens tokenlimit modellength truncated"
        " modelcontextwindowexceeded contextlength contextlengthexceeded contextwindowexceeded"
    ),
    "content_filter": (
        "contentfilter contentfiltered contentmoderation contentpolicy filtered moderation safety imagesafety"
        " guardrailintervened sensitive recitation blocklist blocked prohibitedcontent spii"
    ),
    "refusal": "refusal refused",
    "broken": (
        "error failed failure abort aborted cancelled canceled interrupted timeout overloaded networkerror"
        " internalerror servererror insufficientsystemresource malformedfunctioncall malformedresponse"
        " unexpectedtoolcall unexpectedstate"
    ),
    "paused": "pauseturn compaction",
}
_MEANINGS: Mapping[str, Meaning] = {word: meaning for meaning, words in _WORDS.items() for word in words.split()}


def read_finish(word: object) -> Meaning | None:
    """Return what a finish reason means, whatever its case and separators; None where none is given."""
    if not isinstance(word, str):
        return None if word is None else "unknown"
    plain = re.sub(r"[^a-z]", "", word.lower())
    return _MEANINGS.get(plain, "unknown") if word.strip() else None
