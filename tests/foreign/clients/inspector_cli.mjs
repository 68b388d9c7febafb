// The inspector's command line: each call is a process of its own, so a run goes through four of them.

import { driveAsCaller, job, report } from "./scripted_model.mjs";
import { inside, runScript, serversFile } from "./shell.mjs";

const inspector = inside("@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js");
const at = ["--config", serversFile(), "--server", "kairos", "--protocol-era", job.era, "--format", "json", "--quiet"];

async function callInspector(...words) {
  const { code, out, err } = await runScript(inspector, "--cli", ...at, ...words);
  if (code !== 0) throw new Error(`${words[1]}: exit code ${code}: ${out}${err}`);
  return JSON.parse(out);
}

const strict = await runScript(inspector, "--cli", ...at.slice(0, -1), "--method", "tools/list", "--strict");
const result = await driveAsCaller(async (name, given) => {
  const named = ["--tool-name", name, "--tool-args-json", JSON.stringify(given)];
  const printed = await callInspector("--method", "tools/call", ...named);
  return (printed.result ?? printed).structuredContent;
});
report(result, { strict: { code: strict.code, said: strict.err.trim() } });
