// mcpc: declares sampling, then answers a request for it with "method not found".

import { join } from "node:path";
import { byCaller, job, tell } from "./mind.mjs";
import { inside, ran, serversFile } from "./shell.mjs";

process.env.MCPC_HOME_DIR = join(job.folder, "mcpc");
const mcpc = inside("@apify", "mcpc", "bin", "mcpc");

async function said(...words) {
  const { code, out, err } = await ran(mcpc, "--json", ...words);
  if (code !== 0) throw new Error(`${words.join(" ").slice(0, 80)}: exit code ${code}: ${out}${err}`);
  return JSON.parse(out);
}

const target = job.transport === "http" ? job.url : `${serversFile()}:kairos`;
/** mcpc gives the process that it starts in the background 5 s to come up: too little on a busy machine. */
async function connected(tries) {
  try {
    await said("connect", target, "@kairos");
  } catch (error) {
    if (tries <= 1) throw error;
    await connected(tries - 1);
  }
}

await connected(4);
try {
  const result = await byCaller(
    async (name, given) => (await said("@kairos", "tools-call", name, JSON.stringify(given))).structuredContent,
  );
  tell(result);
} finally {
  await ran(mcpc, "close", "@kairos");
}
