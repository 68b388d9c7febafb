// The tools that loops may call, with the definitions that wait for a person; and the agents of a team.

import { html, useState } from "./vendor/preact-htm.js";
import { useAct } from "./acts.js";
import { useFetched } from "./connection.js";
import { formatAgo, formatCount, formatMoney, joinFacts, plural, revealHidden, timeOf } from "./format.js";
import { EffectChip, Failure, Preview, useArmed } from "./waiting.js";

/** A definition that waits: what it is, how it differs from the approved one, and the two buttons. */
export function DefinitionCard({ definition, onDone }) {
  const { perform, isBusy, failure } = useAct(onDone);
  const armed = useArmed(definition.hash);
  const named = { address: definition.address, pin: definition.hash };
  const who = [definition.by, definition.at && formatAgo(timeOf(definition.at))].filter(Boolean).join(", ");
  return html`<section class="waiting" aria-label="Waits">
    <header><h2><i
      aria-hidden="true">◆</i> ${definition.state === "changed" ? "This definition has changed:" : "May this be used?"}
      ${" "}<code>${definition.address}</code></h2><span class="quiet until">${who}</span></header>
    ${(definition.remarks || []).map((remark) => html`<p class="remark">${revealHidden(remark)}</p>`)}
    <${Preview} text=${definition.diff} />
    <div class="decision"><div class="buttons">
      <button class="yes" data-approve disabled=${isBusy || !armed}
        onClick=${() => perform("tool_approve", named)}>Approve</button>
      <button class="no" disabled=${isBusy || !armed} onClick=${() => perform("tool_remove", named)}>Remove</button>
      <span class="digest">${definition.pin}</span></div><${Failure} failure=${failure} /></div></section>`;
}

const ruleWords = ({ argv, path, run_id: run, counts }) =>
  joinFacts(
    argv?.join(" ") || path || "exactly the same arguments",
    run ? "in one run" : "in the project",
    counts === false && "no longer in force: what it is about has changed",
  );

const labelsOf = ({ reaches, trusted, private: isPrivate }) =>
  joinFacts(
    `reaches ${reaches ?? "outside (not stated)"}`,
    trusted ? "trusted" : "not trusted",
    isPrivate ? "private" : "not private",
  );

function ToolDetails({ name }) {
  const { value, failure } = useFetched("api/tool", { name });
  if (!value) return html`<${Failure} failure=${failure} />`;
  const text = value.tool && JSON.stringify(value.tool.input_schema, null, 2);
  return html`<div class="details">${value.tool?.description && html`<p class="description">
    ${revealHidden(value.tool.description)}</p>`}
    ${value.tool && html`<p class="quiet">${labelsOf(value.tool)}</p>`}
    ${(value.remarks || []).map((remark) => html`<p class="remark">${revealHidden(remark)}</p>`)}
    ${text && html`<h4>Arguments</h4><pre tabindex="0">${revealHidden(text)}
      </pre>`}${value.diff && html`<h4>Definition</h4><${Preview} text=${value.diff} />`}</div>`;
}

export function ToolsPage({ tool: open, onDone }) {
  const { value, failure, reload } = useFetched("api/tools");
  const waits = useFetched("api/waits");
  const rules = useFetched("api/rules");
  const done = async (answer) => {
    await onDone(answer);
    await Promise.all([reload(), waits.reload(), rules.reload()]);
  };
  const { perform, isBusy, failure: refused } = useAct(done);
  if (!value) return html`<h1>Tools</h1><${Failure} failure=${failure} />`;
  return html`<h1>Tools <small class="quiet">${value.tools.length}</small></h1>
    ${(waits.value?.definitions || []).map((definition) => html`<${DefinitionCard}
      key=${definition.address + definition.hash} definition=${definition} onDone=${done} />`)}
    ${value.notes.map((note) => html`<p class="still">${revealHidden(note)}</p>`)}
    ${value.tools.length === 0 && html`<div class="empty"><h2>No tools</h2><pre>kairos-mcp tools list</pre></div>`}
    ${value.tools.length > 0 && html`<p class="heads tool" aria-hidden="true"><span>tool</span><span>what it does</span>
      <span>from</span><span>state</span></p>`}
    <ul class="rows">${value.tools.map((tool) => html`<li key=${tool.name + tool.state}><a class="tool"
      href=${open === tool.name ? "#/tools" : `#/tools/${encodeURIComponent(tool.name)}`}
      aria-expanded=${String(open === tool.name)}>
      <code>${tool.name}</code><${EffectChip} effect=${tool.effect} /><span class="quiet">${tool.source}</span>
        <span class="state-word ${tool.state}">
        ${tool.state === "new" || tool.state === "changed" ? `${tool.state}: waits for you` : tool.state}</span></a>
      ${open === tool.name && html`<${ToolDetails} name=${tool.address || tool.name} />`}</li>`)}</ul>
    ${rules.value?.rules.length > 0 && html`<section class="card"><h2>Remembered approvals</h2>
      <${Failure} failure=${refused} />
      <ul class="then">${rules.value.rules.map((rule) => html`<li key=${rule.rule} class="rule"><code>${rule.tool}
        </code><span>
        ${ruleWords(rule)}</span>
        <button class="small" disabled=${isBusy}
          onClick=${() => perform("rule_remove", { rule: rule.rule })}>Remove</button></li>`)}</ul></section>`}`;
}

const agentFacts = ({ tools, model, max_rounds: rounds, from, record }) => [
  ["tools", tools.join(", ")],
  ["model", model],
  ["rounds", rounds && `at most ${rounds}`],
  ["from", from],
  ["by kind", record?.kinds.map(({ kind, done, tasks }) => `${kind}: ${done} of ${tasks}`).join(", ")],
  ["median", record && medianWords(record.median)],
];

const medianWords = ({ rounds, total_tokens: tokens, usd }) =>
  `${plural(rounds, "round")}, ${formatCount(tokens)} tokens, ${formatMoney(usd)}`;

function AgentRow({ agent }) {
  const [isOpen, setIsOpen] = useState(false);
  const { name, description, record } = agent;
  return html`<li>
    <button class="agent" aria-expanded=${isOpen} onClick=${() => setIsOpen(!isOpen)}>
      <b>${name}</b><span class="description">${revealHidden(description)}</span>
      <span class="record">${record
        ? html`<b>${record.done}</b> of ${plural(record.tasks, "task")} done`
        : html`<span class="quiet">no task yet</span>`}</span>
    </button>
    ${isOpen && html`<div class="details"><dl>${agentFacts(agent).filter(([, fact]) => fact).map(([label, fact]) => html`
      <div><dt>${label}</dt><dd>${fact}</dd></div>`)}</dl></div>`}
  </li>`;
}

export function AgentsPage() {
  const { value, failure } = useFetched("api/agents");
  if (!value) return html`<h1>Agents</h1><${Failure} failure=${failure} />`;
  return html`<h1>Agents <small class="quiet">${value.agents.length}</small></h1>
    <p class="quiet lead">A team gives each task to one of them. The record counts their newest tasks here.</p>
    <p class="heads agent" aria-hidden="true"><span>agent</span><span>what it is for</span><span>record</span></p>
    <ul class="rows">${value.agents.map((agent) => html`<${AgentRow} key=${agent.name} agent=${agent} />`)}</ul>
    ${value.disabled.map(({ name, problem, hint }) => html`
      <p class="still"><b>${name}</b> can't be used: ${problem} ${hint}</p>`)}`;
}
