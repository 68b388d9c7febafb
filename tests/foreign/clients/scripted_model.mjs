// The model of every Node client here: lists the folder, reads the note, answers with the word in it.
// Where the job has a `team`, it says that team's lines instead: support/team_on_source.py has them.

export const GOAL = "Which word does the note hold?";
const READING_MS = 500;
export const job = JSON.parse(process.argv[2]);

/** Give the next answer of a model that was shown `seen` and has answered `turns` times; in a caller's form. */
export function nextAnswer(seen, turns) {
  const shown = JSON.stringify(seen);
  if (job.team) {
    const [, step] = job.team.markers.find(([marker]) => shown.includes(marker));
    return job.team.lines[step.startsWith("task") ? `${step}/try-1/round-${turns + 1}` : step];
  }
  if (!shown.includes("read_file")) return { content: "no tools were shown", finish: "stop" };
  if (turns === 0) return calls("list_files", {});
  if (turns === 1) return calls("read_file", { path: "note.txt" });
  const found = shown.match(/word-[0-9a-f]{12}/);
  return { content: found ? found[0] : "no word was seen", finish: "stop" };
}

/** Write an answer in the text dialect. */
export function writeInDialect(answer) {
  if (!answer.tool_calls) return JSON.stringify({ final: answer.content });
  const calls = answer.tool_calls.map((call) => ({ name: call.name, arguments: call.arguments }));
  return JSON.stringify({ tool_calls: calls });
}

/** Make the handler of sampling/createMessage; it notes in `kinds` whether tools were offered. */
export function sampler(way, kinds) {
  return async ({ params }) => {
    kinds.push(params.tools ? "tools" : "plain");
    const answer = nextAnswer(params, params.messages.filter(({ role }) => role === "assistant").length);
    const reply = { role: "assistant", model: "scripted", stopReason: "endTurn" };
    if (way === "text") return { ...reply, content: { type: "text", text: writeInDialect(answer) } };
    if (!answer.tool_calls) {
      const text = { type: "text", text: answer.content };
      return { ...reply, content: params.tools ? [text] : text }; // without tools the SDK of 2025 takes no list
    }
    const content = answer.tool_calls.map(({ name, arguments: input }, number) => {
      return { type: "tool_use", id: `c${number + 1}`, name, input };
    });
    return { ...reply, stopReason: "toolUse", content };
  };
}

/** What the client declares for the job's way. */
export function capabilities(way) {
  if (way === "steps") return { elicitation: {} };
  if (way === "native") return { sampling: { tools: {} } };
  return way === "text" ? { sampling: {} } : {};
}

/** Take the job's steps, each the name of a way and what it is given; give the value of each, or its error. */
export async function takeSteps(ways) {
  const results = [];
  for (const [way, ...given] of job.steps) {
    results.push(await ways[way](...given).then((value) => ({ value }), (error) => ({ error: String(error) })));
  }
  return results;
}

/** The user's answer to each dialog, after longer than a client takes that answers by itself. */
export async function approve() {
  await new Promise((resolve) => setTimeout(resolve, READING_MS));
  return { action: "accept", content: { decision: "approve" } };
}

/** Drive the run that the job asks for to its end, in the way that it asks for. */
export async function driveByJob(call) {
  const { team, way } = job;
  if (!team) return way === "caller" ? driveAsCaller(call) : call("planner_run", { goal: GOAL });
  let result = await call("team_run", { goal: team.goal, limits: { rounds: 40 } });
  while (result.status === "input_required") {
    if (way === "caller") result = await answerSideBySide(call, result, team.lines);
    else if (result.route !== "sampling") return result; // its answer was refused
    else result = await call("run_continue", { run_id: result.run_id }); // after so many rounds of one call
  }
  return result;
}

/** Answer each request that waits in a call of its own, as a host with sub-agents does; give the run afterwards.
 *
 * The first time that several wait, one of them alone is answered: the others wait on.
 */
async function answerSideBySide(call, { run_id, waiting }, lines) {
  let keys = waiting.map(({ key }) => key);
  if (keys.includes("task-1/try-1/round-1")) keys = keys.slice(0, 1);
  const results = await Promise.all(
    keys.map((key) => call("run_continue", { run_id, answers: { [key]: lines[key] } })),
  );
  if (results.length === 1) return results[0];
  return (await call("run_status", { run_ids: [run_id], view: "full" })).runs[0];
}

/** Drive a run by the caller route to its end; `call` gives a tool's structured content.
 *
 * Its model has read what came before: after an answer it is shown only what is new.
 */
export async function driveAsCaller(call) {
  let result = await call("planner_run", { goal: GOAL });
  const shown = [];
  while (result.status === "input_required") {
    const [item] = result.waiting;
    shown.push(item);
    const answers = { [item.key]: nextAnswer(shown, shown.length - 1) };
    result = await call("run_continue", { run_id: result.run_id, answers });
  }
  return result;
}

/** Print a client's last line: how the run ended as the client saw it. */
export function report(result, more = {}) {
  console.log(JSON.stringify({ result, ...more }));
}

function calls(name, given) {
  return { tool_calls: [{ id: "c1", name, arguments: given }] };
}
