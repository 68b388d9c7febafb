// The webhooks of the AI SDK: it subscribes, its own handler is the endpoint, and the library of Standard Webhooks
// verifies once more what came.
import { createServer } from 'node:http';
import { createMCPClient, experimental_createMCPEventWebhook as createWebhook } from '@ai-sdk/mcp';
import { Webhook } from 'standardwebhooks';

const job = JSON.parse(process.argv[2]);
const kept = new Map();
const store = {
  get: async key => kept.get(key),
  getById: async id => [...kept.values()].find(each => each.id === id),
  set: async one => void kept.set(one.key, one),
  update: async (key, patch) => void kept.set(key, { ...kept.get(key), ...patch }),
  delete: async key => void kept.delete(key),
};
const events = [];
const answered = [];
const raw = [];
let arrived;
const first = new Promise(resolve => (arrived = resolve));
const handle = createWebhook({
  store,
  onEvent: async ({ event }) => {
    events.push(event);
    arrived();
  },
});

async function ask(body, headers, path) {
  const url = `http://127.0.0.1:${job.port}${path}`;
  const answer = await handle(new Request(url, { method: 'POST', headers, body }));
  return { status: answer.status, body: await answer.text() };
}

createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks);
  raw.push({ body: body.toString(), headers: request.headers, path: request.url });
  const answer = await ask(body, request.headers, request.url);
  answered.push(answer.status);
  response.writeHead(answer.status, { 'content-type': 'application/json' }).end(answer.body);
}).listen(job.port, '127.0.0.1');

const client = await createMCPClient({ transport: { type: 'http', url: job.url }, experimental_events: { store } });
const api = client.experimental_events;
const listed = (await api.list()).events.map(each => each.name);
const delivery = { mode: 'webhook', url: `http://127.0.0.1:${job.port}/hook`, allowInsecureLocalhost: true };
const made = await api.subscribe({ name: 'run.ended', delivery, ttlMs: 60_000 });
const tools = await client.tools();
const options = { toolCallId: 'call', messages: [] };
const started = await tools.planner_run.execute({ goal: 'wait', route: 'caller', wait_s: 0 }, options);
const run = started.structuredContent.run_id;
await tools.run_control.execute({ run_id: run, action: 'cancel' }, options);
await first;

const sent = raw.at(-1);
const secret = [...kept.values()][0].delivery.secret;
const verified = new Webhook(secret).verify(sent.body, sent.headers);
const forged = await ask(sent.body.replace(run, 'run-forged'), sent.headers, sent.path);
const renewed = await api.refresh({ id: made.id });
await api.unsubscribe({ id: made.id });
console.log(JSON.stringify({ listed, run, events, answered, verified, forged: forged.status, ids: [made.id, renewed.id] }));
process.exit(0);
