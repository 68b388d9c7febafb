"""What a team starts from: its agents, its prompts, how much runs at once; and how its prompts are filled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kairos_mcp.core.effects import EFFECTS
from kairos_mcp.core.messages import Conversation, Message, ToolSet
from kairos_mcp.core.plan import MAX_TASKS, AgentTools, Plan, PlannedTask, fitting_agents
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.flows.planner_input import PlannerInput, quote_lines, render_sections
from kairos_mcp.flows.prompt_texts import PromptTexts, prompt_field

CONTROL = "agent_control"  # the category of tools by which a loop asks for rounds, or ends its task


@dataclass(frozen=True, slots=True)
class TeamPrompts(PromptTexts):
    """Every sentence that a team itself says to a model."""

    prefix = "team"

    plan: str = prompt_field()  # after the planner's own prompt: what a plan is
    plan_user: str = prompt_field("goal", "context", "agents", "records", "files")
    replan_user: str = prompt_field("goal", "context", "agents", "results", "failed")
    task_user: str = prompt_field("task", "goal", "context", "results", "earlier")
    synthesis: str = prompt_field()
    synthesis_user: str = prompt_field("goal", "context", "results")
    left_out: str = prompt_field("left", "ref")  # in the middle of a text that was cut
    repair: str = prompt_field("problems")
    cut_off: str = prompt_field("tokens")


@dataclass(frozen=True, slots=True)
class TeamAgent:
    """An agent as a team knows it: what it is for, its system prompt, the tools that it may call."""

    name: str
    description: str
    system: str
    tools: ToolSet
    max_rounds: int

    @property
    def power(self) -> int:
        """How much its tools may do, from 0: the strongest effect among those that it works with."""
        return max((EFFECTS.index(spec.effect) for spec in self.tools if spec.category != CONTROL), default=0)


@dataclass(frozen=True, slots=True)
class TeamInput:
    """Everything a team starts from.

    `agents`: those that may be given a task, by name, in the order in which they are chosen. `planner`: the planner's
    system prompt. `records`: what these agents did before. `files`: the names of the workspace's files. `plan`: one
    that was given, so that none is asked for. `lists_names`: the schema lists the names that a plan may hold, for small
    models, which write those of files where tools are asked for. `max_tasks`: of one plan. `submits`: the tasks
    work in one stage, which the team submits at its end.
    `loop`: what the loops of all agents have in common; its system prompt, goal and tools are replaced.
    """

    goal: str
    context: str
    agents: Mapping[str, TeamAgent]
    planner: str
    prompts: TeamPrompts
    loop: PlannerInput
    max_parallel: int
    records: str = ""
    files: str = ""
    plan: Plan | None = None
    lists_names: bool = False
    max_tasks: int = MAX_TASKS
    submits: bool = False

    @property
    def agent_tools(self) -> AgentTools:
        return {agent.name: [spec.name for spec in agent.tools] for agent in self.agents.values()}

    def next_agent(self, task: PlannedTask) -> str | None:
        """Return the agent that tries the task once more after its own; None where no other fits.

        Of those that fit it is the one of the least power, so that what only reads is not handed to one that may write;
        of several the first. A task that names no needs is taken to need every tool of its agent.
        """
        tools = self.agent_tools
        assert task.agent is not None, "a plan that was parsed names the agent of each task"
        own = set(tools[task.agent])
        others = [name for name in fitting_agents(task, tools) if name != task.agent]
        fitting = (name for name in others if task.needs or own <= set(tools[name]))
        return min(fitting, key=lambda name: self.agents[name].power, default=None)

    def plan_conversation(self) -> Conversation:
        """Return what a plan is asked with."""
        user = render_sections(
            self.prompts.plan_user,
            goal=self.goal,
            context=quote_lines(self.context),
            agents=self._describe_agents(),
            records=self.records,
            files=quote_lines(self.files),
        )
        return self._ask_planner(user)

    def replan_conversation(self, results: str, failed: str) -> Conversation:
        """Return what tasks in place of the failed ones are asked with."""
        user = render_sections(
            self.prompts.replan_user,
            goal=self.goal,
            context=quote_lines(self.context),
            agents=self._describe_agents(),
            results=results,
            failed=failed,
        )
        return self._ask_planner(user)

    def synthesis_conversation(self, results: str) -> Conversation:
        """Return what the one answer of the team is asked with."""
        user = render_sections(
            self.prompts.synthesis_user, goal=self.goal, context=quote_lines(self.context), results=results
        )
        return Conversation((Message("system", self.prompts.synthesis), Message("user", user)))

    def task_loop(self, agent: str, task: str, results: str, earlier: str) -> PlannerInput:
        """Return what an agent's loop starts from. `results`: of the tasks before; `earlier`: of a failed try."""
        whose = self.agents[agent]
        user = render_sections(
            self.prompts.task_user,
            task=task,
            goal=quote_lines(self.goal),
            context=quote_lines(self.context),
            results=results,
            earlier=earlier,
        )
        return replace(self.loop, system=whose.system, history=(), user=user, tools=whose.tools)

    def _ask_planner(self, user: str) -> Conversation:
        return Conversation((Message("system", f"{self.planner}\n\n{self.prompts.plan}"), Message("user", user)))

    def _describe_agents(self) -> str:
        """List the agents with the tools that they work with; those by which a loop steers itself say nothing of it."""
        lines = []
        for agent in self.agents.values():
            tools = [spec.name for spec in agent.tools if spec.category != CONTROL]
            lines.append(f"- {agent.name}: {agent.description} Tools: {', '.join(tools)}.")
        return "\n".join(lines)
