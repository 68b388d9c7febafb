// The TypeScript SDK of 2026 (@modelcontextprotocol/client), in both eras.

import { Client, SSEClientTransport, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { approve, capabilities, driveByJob, job, report, sampler, takeSteps } from "./scripted_model.mjs";

const asked = [];

function transport() {
  if (job.transport === "http") return new StreamableHTTPClientTransport(new URL(job.url));
  if (job.transport === "sse") return new SSEClientTransport(new URL(job.url));
  const [command, ...args] = job.command;
  return new StdioClientTransport({ command, args });
}

const client = new Client(
  { name: "ts-2", version: "1" },
  {
    capabilities: capabilities(job.way),
    versionNegotiation: { mode: job.era === "legacy" ? "legacy" : "auto" },
  },
);
if (job.way === "steps") client.setRequestHandler("elicitation/create", approve);
else if (job.way !== "caller") client.setRequestHandler("sampling/createMessage", sampler(job.way, asked));
await client.connect(transport());
await client.listTools(); // from here on results are held against the listed output schemas
const call = async (name, given) => (await client.callTool({ name, arguments: given })).structuredContent;
const ways = {
  call,
  read: async (uri) => (await client.readResource({ uri })).contents[0].text,
  prompt: async (name, given) => (await client.getPrompt({ name, arguments: given })).messages[0].content.text,
  complete: async (name, argument, value) => {
    const asked = { ref: { type: "ref/prompt", name }, argument: { name: argument, value } };
    return (await client.complete(asked)).completion.values;
  },
};
const result = job.way === "steps" ? { steps: await takeSteps(ways) } : await driveByJob(call);
report(result, { protocol: client.getNegotiatedProtocolVersion?.(), asked });
await client.close();
