"""The options that most commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Home = Annotated[str | None, typer.Option("--home", metavar="DIR", help="State folder (or KAIROS_HOME).")]
Folders = Annotated[
    list[str] | None,
    typer.Option("--workspace", metavar="DIR", help="A folder that file tools may touch; repeatable."),
]
File = Annotated[str | None, typer.Option("--config", metavar="FILE", help="Settings file (or KAIROS_CONFIG).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
