// The model of every Node client here: looks at the folder, reads the note, tells the word that stands in it.

export const GOAL = "Which word does the note hold?";
export const job = JSON.parse(process.argv[2]);

/** What is said next, after `turns` of its own, having seen all of `seen`; in the shape of a caller's answer. */
export function turn(seen, turns) {
  const shown = JSON.stringify(seen);
  if (!shown.includes("read_file")) return { content: "no tools were shown", finish: "stop" };
  if (turns === 0) return calls("list_files", {});
  if (turns === 1) return calls("read_file", { path: "note.txt" });
  const found = shown.match(/word-[0-9a-f]{12}/);
  return { content: found ? found[0] : "no word was seen", finish: "stop" };
}

/** The same in the text dialect. */
export function written(said) {
  if (!said.tool_calls) return JSON.stringify({ final: said.content });
  return JSON.stringify({ tool_calls: said.tool_calls.map(({ name, arguments: given }) => ({ name, arguments: given })) });
}

/** What sampling/createMessage is answered with; `kinds` is told whether tools were offered. */
export function sampler(way, kinds) {
  return async ({ params }) => {
    kinds.push(params.tools ? "tools" : "plain");
    const said = turn(params, params.messages.filter(({ role }) => role === "assistant").length);
    const reply = { role: "assistant", model: "mind", stopReason: "endTurn" };
    if (way === "text") return { ...reply, content: { type: "text", text: written(said) } };
    if (!said.tool_calls) return { ...reply, content: [{ type: "text", text: said.content }] };
    const content = said.tool_calls.map(({ id, name, arguments: input }) => ({ type: "tool_use", id, name, input }));
    return { ...reply, stopReason: "toolUse", content };
  };
}

/** What the client declares on the job's way. */
export function declared(way) {
  if (way === "native") return { sampling: { tools: {} } };
  return way === "text" ? { sampling: {} } : {};
}

/** A run that the calling model drives; `call` gives a tool's structured content. */
export async function byCaller(call) {
  let result = await call("planner_run", { goal: GOAL });
  while (result.status === "input_required") {
    const answers = Object.fromEntries(result.waiting.map((item) => [item.key, answer(item)]));
    result = await call("run_continue", { run_id: result.run_id, answers });
  }
  return result;
}

/** The answer to a waiting completion. */
export function answer(item) {
  return turn(item, item.messages.filter(({ role }) => role === "assistant").length);
}

/** The last line of a client: how the run ended as the client saw it. */
export function tell(result, more = {}) {
  console.log(JSON.stringify({ result, ...more }));
}

function calls(name, given) {
  return { tool_calls: [{ id: "c1", name, arguments: given }] };
}
