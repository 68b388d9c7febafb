// The TypeScript SDK of 2025 (@modelcontextprotocol/sdk).

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CreateMessageRequestSchema, ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { approve, capabilities, driveByJob, job, report, sampler, takeSteps } from "./scripted_model.mjs";

const asked = [];

function transport() {
  if (job.transport === "http") return new StreamableHTTPClientTransport(new URL(job.url));
  if (job.transport === "sse") return new SSEClientTransport(new URL(job.url));
  const [command, ...args] = job.command;
  return new StdioClientTransport({ command, args });
}

const client = new Client({ name: "ts-1", version: "1" }, { capabilities: capabilities(job.way) });
if (job.way === "steps") client.setRequestHandler(ElicitRequestSchema, approve);
else if (job.way !== "caller") client.setRequestHandler(CreateMessageRequestSchema, sampler(job.way, asked));
let protocol;
const way = transport();
const agreed = way.setProtocolVersion?.bind(way);
way.setProtocolVersion = (version) => {
  protocol = version;
  agreed?.(version);
};
await client.connect(way);
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
report(result, { protocol, asked });
await client.close();
