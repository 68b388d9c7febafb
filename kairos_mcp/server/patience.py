"""How long a client is waited for, how often it is asked within one call, how long what it carries is good."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitPolicy:
    """How long a call waits for its client (seconds), and how often it asks. Tests bring shorter times."""

    first_s: float = 30.0  # for a client's first answer: some declare sampling and never answer
    later_s: float = 300.0  # once it has answered
    again_s: float = 30.0  # who calls again this long after an ask, without an answer, has refused to give one
    instant_s: float = 0.3  # a dialog that was declined sooner was seen by nobody
    settle_s: float = 1.0  # what a run on this route has to come to rest when its call is over
    rounds: int = 8  # a stock client gives up after 10 rounds of one call
    state_s: float | None = None  # how long a requestState is good; None: as long as an approval


PATIENCE = WaitPolicy()
