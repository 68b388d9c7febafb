// A server by the TypeScript SDK that has events to poll and to stream: each line of a file is the id of one. A second
// file gets the method of each request for them.
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { z } from 'zod';

const file = process.argv[2];
const lines = () => (existsSync(file) ? readFileSync(file, 'utf8').split('\n').filter(Boolean) : []);
const params = z.object({ name: z.literal('build.finished'), cursor: z.string().nullish() }).passthrough();
const asked = method => appendFileSync(`${file}.asked`, `${method}\n`);
const event = (id, name) => ({ eventId: id, name, timestamp: new Date().toISOString(), data: {} });
const server = new Server({ name: 'builds', version: '1' }, { capabilities: { tools: {} } });
server.setRequestHandler(ListToolsRequestSchema, () => ({ tools: [] }));
server.setRequestHandler(z.object({ method: z.literal('events/poll'), params }), ({ params }) => {
  asked('events/poll');
  const known = lines();
  const news = params.cursor == null ? [] : known.slice(Number(params.cursor));
  const events = news.map(id => event(id, params.name));
  return { events, cursor: String(known.length), truncated: false, hasMore: false };
});
const stream = z.object({ method: z.literal('events/stream'), params });
server.setRequestHandler(stream, async ({ params }, { requestId, sendNotification, signal }) => {
  asked('events/stream');
  let at = params.cursor == null ? lines().length : Number(params.cursor);
  const tell = (name, told) => {
    const meta = { _meta: { 'io.modelcontextprotocol/subscriptionId': requestId } };
    return sendNotification({ method: `notifications/events/${name}`, params: { ...told, ...meta } });
  };
  await tell('active', { cursor: String(at) });
  while (!signal.aborted) {
    for (const id of lines().slice(at)) await tell('event', { ...event(id, params.name), cursor: String(++at) });
    await new Promise(done => setTimeout(done, 20));
  }
  return {};
});
await server.connect(new StdioServerTransport());
