// Where a client lies, and a file that names the server for it.

import { writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { job } from "./scripted_model.mjs";

const here = dirname(fileURLToPath(import.meta.url));

/** The path of a package's file in this environment. */
export function inside(...path) {
  return join(here, "node_modules", ...path);
}

/** A file in the form that most hosts read: `mcpServers` with one server, `kairos`. */
export function serversFile(types = { http: "streamable-http", sse: "sse" }) {
  const [command, ...args] = job.command;
  const entry =
    job.transport === "stdio" ? { type: "stdio", command, args } : { type: types[job.transport], url: job.url };
  const file = join(job.folder, "servers.json");
  writeFileSync(file, JSON.stringify({ mcpServers: { kairos: { ...entry, protocolEra: job.era } } }));
  return file;
}
