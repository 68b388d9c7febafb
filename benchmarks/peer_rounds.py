"""Rounds of another framework, in the Python of its own environment: `PYTHON -P peer_rounds.py NAME FOLDER ROUNDS`.

Prints CPU seconds a round, and the bytes that are left in the folder. Every model here says what the script of our own
rounds says, and every tool does nothing. Models and tools are async where that saves the framework a thread.
"""

import asyncio
import json
import operator
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

WARM = 5  # rounds before those that are measured


class Script:
    """So many turns with one call, then one that ends. The first turn starts the clock, so that a start is no round."""

    def __init__(self, name: str, rounds: int) -> None:
        self.name, self.rounds = name, rounds
        self.turns, self.calls, self.began = 0, 0, 0.0

    def next_arguments(self) -> dict[str, Any] | None:
        """Return the arguments of the next call, which no other round has; None: the run is to end."""
        if not self.turns:
            self.began = time.process_time()
        self.turns += 1
        n = self.turns
        return None if n > self.rounds else {"path": f"{n % 128:03}.txt", "start_line": 1 + n // 128, "end_line": n}

    def call(self) -> str:
        self.calls += 1
        return "nothing"

    def seconds_a_round(self) -> float:
        spent = time.process_time() - self.began
        assert (self.turns, self.calls) == (self.rounds + 1, self.rounds)
        return spent / self.rounds


# what runs a script, and returns CPU seconds a round; it may be called again
Run = Callable[[Script], float]

# -- LangGraph -------------------------------------------------------------------------------------------------------


@contextmanager
def langgraph(folder: Path, durability: str = "sync", *, is_delta: bool = False, tasks: int = 0) -> Iterator[Run]:
    """Run the graph of its quickstart, with the nodes written out: its prebuilt ToolNode takes a pool of threads.

    `tasks`: its orchestrator with so many workers, each of which runs that graph; the plan is given, and the answer is
    made of what they found.
    """
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool
    from langgraph.channels import DeltaChannel
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import tools_condition
    from langgraph.types import Send
    from typing_extensions import TypedDict

    class Scripted(BaseChatModel):
        script: Any
        _llm_type = "scripted"

        def _generate(self, *_given: Any, **_named: Any) -> ChatResult:
            arguments = self.script.next_arguments()
            calls = arguments and [{"name": "noop", "args": arguments, "id": f"call-{self.script.turns}"}]
            used = {"input_tokens": 100, "output_tokens": 3, "total_tokens": 103}
            said = AIMessage("I look.", tool_calls=calls or [], usage_metadata=used)
            return ChatResult(generations=[ChatGeneration(message=said)])

    def extended(messages: list[AnyMessage], written: list[list[AnyMessage]]) -> list[AnyMessage]:
        return [*messages, *chain.from_iterable(written)]

    class DeltaState(TypedDict):
        messages: Annotated[list[AnyMessage], DeltaChannel(extended)]

    class TeamState(TypedDict):
        results: Annotated[list[str], operator.add]

    def make_loop(script: Script) -> Any:
        @tool
        def noop(path: str, start_line: int, end_line: int) -> str:
            """Do nothing."""
            return script.call()

        model = Scripted(script=script)
        graph = StateGraph(DeltaState if is_delta else MessagesState)
        graph.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_node(
            "tools", lambda state: {"messages": [noop.invoke(call) for call in state["messages"][-1].tool_calls]}
        )
        graph.add_edge(START, "agent")
        graph.add_conditional_edges("agent", tools_condition)
        graph.add_edge("tools", "agent")
        return graph

    def run(script: Script) -> float:
        limited = {"recursion_limit": 2 * script.rounds + 5}
        thread = {"configurable": {"thread_id": script.name}, **limited}
        goal = {"messages": [HumanMessage("measured")]}
        if not tasks:
            make_loop(script).compile(checkpointer=saver).invoke(goal, thread, durability=durability)
            return script.seconds_a_round()
        scripts = [Script(f"task-{n}", script.rounds) for n in range(tasks)]
        loops = [
            make_loop(each).compile().with_config(limited) for each in scripts
        ]  # the steps of each are kept with the run's

        def work(task: int) -> dict[str, list[str]]:
            return {"results": [loops[task].invoke(goal)["messages"][-1].text]}

        team = StateGraph(TeamState)
        team.add_node("plan", lambda _state: {})
        team.add_node("task", work)
        team.add_node("answer", lambda state: {"results": ["\n".join(state["results"])]})
        team.add_edge(START, "plan")
        team.add_conditional_edges("plan", lambda _state: [Send("task", n) for n in range(tasks)], ["task"])
        team.add_edge("task", "answer")
        began = time.process_time()
        team.compile(checkpointer=saver).invoke({"results": []}, thread, durability=durability)
        spent = time.process_time() - began
        assert all((each.turns, each.calls) == (script.rounds + 1, script.rounds) for each in scripts)
        return spent / (tasks * script.rounds)

    with closing(sqlite3.connect(folder / "peer.db", check_same_thread=False)) as connection:
        saver = SqliteSaver(connection)
        saver.setup()  # puts the file into WAL mode
        connection.execute("pragma synchronous = normal")
        yield run


# -- pydantic-ai -----------------------------------------------------------------------------------------------------


class PydanticAgent:
    """An agent whose model and tool go by the script of the present run. `step`: what the tool is decorated with."""

    def __init__(self, capabilities: list[Any], step: Callable[[Any], Any] | None = None) -> None:
        from pydantic_ai import Agent
        from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
        from pydantic_ai.models.function import FunctionModel
        from pydantic_ai.usage import RequestUsage, UsageLimits

        async def complete(_messages: Any, _info: Any) -> ModelResponse:
            arguments = self.script.next_arguments()
            call = ToolCallPart("noop", arguments, f"call-{self.script.turns}")
            said = [TextPart("I look."), *([call] if arguments else [])]
            return ModelResponse(parts=said, usage=RequestUsage(input_tokens=100, output_tokens=3))

        async def noop(path: str, start_line: int, end_line: int) -> str:
            """Do nothing."""
            return self.script.call()

        self.script = Script("none", 0)
        self.agent = Agent(FunctionModel(complete, model_name="scripted"), name="peer", capabilities=capabilities)
        self.agent.tool_plain(step(noop) if step else noop)
        self.limits = UsageLimits(request_limit=None)

    async def run(self) -> None:
        await self.agent.run("measured", usage_limits=self.limits)

    def measure(self, script: Script, run: Callable[[], Awaitable[None]]) -> float:
        self.script = script

        async def measured() -> float:
            await run()
            return script.seconds_a_round()

        return asyncio.run(measured())


@contextmanager
def pydantic_ai(_folder: Path) -> Iterator[Run]:
    peer = PydanticAgent([])
    yield lambda script: peer.measure(script, peer.run)


@contextmanager
def pydantic_ai_rows(folder: Path) -> Iterator[Run]:
    """Store new messages as a row after the node that made them: what its users write themselves, with its `iter`."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    peer = PydanticAgent([])

    async def run() -> None:
        stored = 0
        async with peer.agent.iter("measured", usage_limits=peer.limits) as nodes:
            async for _node in nodes:
                if new := nodes.all_messages()[stored:]:
                    connection.execute("insert into message(body) values (?)", (encode(new),))
                    stored += len(new)

    encode = ModelMessagesTypeAdapter.dump_json
    with closing(sqlite3.connect(folder / "peer.db", isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")
        connection.execute("create table message(id integer primary key, body blob)")
        yield lambda script: peer.measure(script, run)


@contextmanager
def pydantic_ai_dbos(folder: Path) -> Iterator[Run]:
    """Run as its documents make it durable: a workflow of DBOS in which completions and calls are steps, on SQLite."""
    from dbos import DBOS
    from pydantic_ai.durable_exec.dbos import DBOSDurability

    file = folder / "peer.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma journal_mode = wal")  # stays with the file; DBOS itself leaves it at `delete`
    DBOS(config={"name": "peer", "system_database_url": f"sqlite:///{file}", "log_level": "ERROR"})
    peer = PydanticAgent([DBOSDurability()], DBOS.step())

    @DBOS.workflow()
    async def workflow() -> None:
        await peer.run()

    DBOS.launch()
    yield lambda script: peer.measure(script, workflow)
    DBOS.destroy()


# -- openai-agents, smolagents ---------------------------------------------------------------------------------------


@contextmanager
def openai_agents(folder: Path, *, is_stored: bool = True) -> Iterator[Run]:
    from agents import Agent, Model, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    class Scripted(Model):
        def __init__(self, script: Script) -> None:
            self.script = script

        async def get_response(self, *_given: Any, **_named: Any) -> ModelResponse:
            arguments, n = self.script.next_arguments(), self.script.turns
            text = ResponseOutputText(type="output_text", text="I look.", annotations=[])
            said: list[Any] = [
                ResponseOutputMessage(
                    id=f"said-{n}", type="message", role="assistant", status="completed", content=[text]
                )
            ]
            if arguments:
                words = {"call_id": f"call-{n}", "name": "noop", "arguments": json.dumps(arguments)}
                said.append(ResponseFunctionToolCall(type="function_call", **words))
            used = Usage(requests=1, input_tokens=100, output_tokens=3, total_tokens=103)
            return ModelResponse(output=said, usage=used, response_id=None)

        def stream_response(self, *_given: Any, **_named: Any) -> Any:
            raise NotImplementedError  # the class demands it, and nothing here streams

    async def run(script: Script) -> float:
        @function_tool
        async def noop(path: str, start_line: int, end_line: int) -> str:
            """Do nothing."""
            return script.call()

        agent = Agent(name="peer", model=Scripted(script), tools=[noop])
        session = SQLiteSession(script.name, folder / "peer.db") if is_stored else None
        untraced = RunConfig(tracing_disabled=True)  # its traces would be sent to their maker
        await Runner.run(agent, "measured", session=session, max_turns=script.rounds + 1, run_config=untraced)
        spent = script.seconds_a_round()
        if session:
            session.close()
        return spent

    yield lambda script: asyncio.run(run(script))


@contextmanager
def smolagents(_folder: Path) -> Iterator[Run]:
    from smolagents import ChatMessage, LogLevel, MessageRole, Model, ToolCallingAgent, tool
    from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction
    from smolagents.monitoring import TokenUsage

    class Scripted(Model):
        def __init__(self, script: Script) -> None:
            super().__init__(model_id="scripted")
            self.script = script

        def generate(self, *_given: Any, **_named: Any) -> ChatMessage:
            arguments = self.script.next_arguments()
            name = "noop" if arguments else "final_answer"
            function = ChatMessageToolCallFunction(arguments or {"answer": "done"}, name)
            call = ChatMessageToolCall(function, f"call-{self.script.turns}", "function")
            used = TokenUsage(input_tokens=100, output_tokens=3)
            return ChatMessage(MessageRole.ASSISTANT, "I look.", [call], token_usage=used)

    def run(script: Script) -> float:
        @tool
        def noop(path: str, start_line: int, end_line: int) -> str:
            """Do nothing.

            Args:
                path: A file.
                start_line: The first line.
                end_line: The last line.
            """
            return script.call()

        agent = ToolCallingAgent([noop], Scripted(script), max_steps=script.rounds + 1, verbosity_level=LogLevel.OFF)
        agent.run("measured")
        return script.seconds_a_round()

    yield run


PEERS: dict[str, Callable[[Path], AbstractContextManager[Run]]] = {
    "langgraph": langgraph,
    "langgraph_async": lambda folder: langgraph(folder, "async"),
    "langgraph_delta": lambda folder: langgraph(folder, is_delta=True),
    "langgraph_team": lambda folder: langgraph(folder, tasks=8),
    "langgraph_delta_team": lambda folder: langgraph(folder, is_delta=True, tasks=8),
    "pydantic_ai": pydantic_ai,
    "pydantic_ai_rows": pydantic_ai_rows,
    "pydantic_ai_dbos": pydantic_ai_dbos,
    "openai_agents": openai_agents,
    "openai_agents_unstored": lambda folder: openai_agents(folder, is_stored=False),
    "smolagents": smolagents,
}


def main(name: str, folder: Path, rounds: int) -> None:
    with PEERS[name](folder) as run:
        run(Script("warm", WARM))
        spent = run(Script("measured", rounds))
    print(json.dumps([spent, sum(file.stat().st_size for file in folder.iterdir())]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
