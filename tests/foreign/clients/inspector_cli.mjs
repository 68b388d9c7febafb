// The inspector's command line: each call is a process of its own, so a run goes through four of them.

import { byCaller, job, tell } from "./mind.mjs";
import { inside, ran, serversFile } from "./shell.mjs";

const inspector = inside("@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js");
const at = ["--config", serversFile(), "--server", "kairos", "--protocol-era", job.era, "--format", "json", "--quiet"];

async function asked(...words) {
  const { code, out, err } = await ran(inspector, "--cli", ...at, ...words);
  if (code !== 0) throw new Error(`${words[1]}: exit code ${code}: ${out}${err}`);
  return JSON.parse(out);
}

const strict = await ran(inspector, "--cli", ...at.slice(0, -1), "--method", "tools/list", "--strict");
const result = await byCaller(async (name, given) => {
  const said = await asked("--method", "tools/call", "--tool-name", name, "--tool-args-json", JSON.stringify(given));
  return (said.result ?? said).structuredContent;
});
tell(result, { strict: { code: strict.code, said: strict.err.trim() } });
