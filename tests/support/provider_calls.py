"""A step on its way to a provider, without an app around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from kairos_mcp.core.messages import Completion, Conversation, Message, Private, ToolSet, ToolSpec
from kairos_mcp.core.model import ModelInput, PrivateParts, RemoteModel
from kairos_mcp.core.steps import Failure, RequestCompletion, Sent
from kairos_mcp.models.dialects import TextPrompts
from kairos_mcp.models.model import ModelOptions
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider import Provider

KEY = "sk-test-1234567890abcdef"
PROMPTS = TextPrompts("Tools:\n$tools", "No tools.", "Schema: $schema", "Answer as $schema")
READ = ToolSpec("read_file", "Reads.", {"type": "object", "properties": {"path": {"type": "string"}}}, "read")


@asynccontextmanager
async def asking(
    name: str, base_url: str | None, environ: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[RemoteModel]:
    """The model of a provider that is closed when the block ends."""
    given = environ if environ is not None else {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
    provider = Provider(Tariff(name, base_url), given)
    try:
        yield provider.make_model(ModelOptions(prompts=PROMPTS, **options))
    finally:
        await provider.close()


def step_of(
    *messages: Message, name: str = "round-1", tools: tuple[ToolSpec, ...] = (READ,), **more: Any
) -> RequestCompletion:
    talk = messages or (Message("system", "Be brief."), Message("user", "Look around."))
    return RequestCompletion(name, "round", Conversation(talk), ToolSet(tools), **more)


async def ask_model(
    model: RemoteModel,
    step: RequestCompletion,
    privates: PrivateParts | None = None,
    note: Callable[[str], None] = lambda _: None,
    **sent: Any,
) -> Completion | Failure:
    private = privates.find if privates is not None else _nothing
    return await model(ModelInput(step.name, step, Sent("provider", **sent), private, note=note))


def _nothing(_: Message) -> Private | None:
    return None
