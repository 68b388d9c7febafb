// mcpc: declares sampling, then answers a request for it with "method not found".

import { join } from "node:path";
import { driveAsCaller, job, report } from "./scripted_model.mjs";
import { inside, runScript, serversFile } from "./shell.mjs";

process.env.MCPC_HOME_DIR = join(job.folder, "mcpc");
const mcpc = inside("@apify", "mcpc", "bin", "mcpc");

async function callMcpc(...words) {
  const { code, out, err } = await runScript(mcpc, "--json", ...words);
  if (code !== 0) throw new Error(`${words.join(" ").slice(0, 80)}: exit code ${code}: ${out}${err}`);
  return JSON.parse(out);
}

const target = job.transport === "http" ? job.url : `${serversFile()}:kairos`;
/** mcpc gives the process that it starts in the background 5 s to come up: too little on a busy machine. */
async function connect(tries) {
  try {
    await callMcpc("connect", target, "@kairos");
  } catch (error) {
    if (tries <= 1) throw error;
    await connect(tries - 1);
  }
}

await connect(4);
try {
  const result = await driveAsCaller(
    async (name, given) => (await callMcpc("@kairos", "tools-call", name, JSON.stringify(given))).structuredContent,
  );
  report(result);
} finally {
  await runScript(mcpc, "close", "@kairos");
}
