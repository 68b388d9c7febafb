// The model of every Node client here: lists the folder, reads the note, answers with the word in it.

export const GOAL = "Which word does the note hold?";
export const job = JSON.parse(process.argv[2]);

/** Give the next answer of a model that was shown `seen` and has answered `turns` times; in a caller's form. */
export function nextAnswer(seen, turns) {
  const shown = JSON.stringify(seen);
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
    if (!answer.tool_calls) return { ...reply, content: [{ type: "text", text: answer.content }] };
    const content = answer.tool_calls.map(({ id, name, arguments: input }) => ({ type: "tool_use", id, name, input }));
    return { ...reply, stopReason: "toolUse", content };
  };
}

/** What the client declares for the job's way. */
export function capabilities(way) {
  if (way === "native") return { sampling: { tools: {} } };
  return way === "text" ? { sampling: {} } : {};
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
