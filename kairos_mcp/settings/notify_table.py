"""The table `[[notify]]` of the settings file: where a person is notified."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from kairos_mcp.settings.table_values import NOTIFIED, NotifySetting, NotifyWay
from kairos_mcp.settings.tables import StrictTable, Text, check_reference


class NotifyTable(StrictTable):
    """The keys of `[[notify]]`."""

    to: NotifyWay = Field(
        description='"desktop" (notify-send, or osascript on macOS), "command" (a program that gets the notification '
        'as JSON on stdin), "ntfy" (a topic of ntfy) or "webhook" (JSON by POST).',
        examples=["desktop"],
    )
    command: list[Text] = Field(
        default_factory=list,
        description="The program and its arguments, for a command. It gets PATH, HOME, the language and what the "
        "desktop needs, and has 10 seconds.",
        examples=[["/home/me/bin/notify"]],
    )
    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+[^\s?#]*$")] = Field(
        "",
        description="The address of the topic or the webhook. Its host may be a private one, since you name it here.",
        examples=["https://ntfy.sh/my-topic"],
    )
    secret: Annotated[str, AfterValidator(check_reference)] | None = Field(
        None,
        description='Where the secret is kept: "env:NAME", "file:PATH" or "keyring:SERVICE/NAME". A webhook is signed '
        "with it by Standard Webhooks (whsec_ and base64); for ntfy it is the access token.",
        examples=["env:KAIROS_NOTIFY_SECRET"],
    )
    events: list[Text] = Field(
        list(NOTIFIED),
        description="What you are notified of, by globs: run.waiting (for you), run.ended, run.stopped (by a limit or "
        "a guard), budget.near (90 % of a limit is used), mandate.due, mandate.ended.",
    )
    quiet: Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9]$")] | None = (
        Field(
            None,
            description="From when to when nothing is sent, in time_zone. What still waits then is sent at its end.",
            examples=["22:00-07:30"],
        )
    )

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        needed = {"command": ("command", self.command), "ntfy": ("url", self.url), "webhook": ("url", self.url)}
        name, value = needed.get(self.to, ("", True))
        if not value:
            raise PydanticCustomError("notify", "`{name}` is missing", {"name": name})
        return self

    def to_setting(self) -> NotifySetting:
        """Return the setting."""
        quiet = None
        if self.quiet is not None:
            begins, ends = (int(time[:2]) * 60 + int(time[3:]) for time in self.quiet.split("-"))
            quiet = begins, ends
        return NotifySetting(self.to, tuple(self.command), self.url, self.secret, tuple(self.events), quiet)
