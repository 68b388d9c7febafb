// A server by the TypeScript SDK that can be polled for events: each line of a file is the id of one.
import { existsSync, readFileSync } from 'node:fs';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { z } from 'zod';

const file = process.argv[2];
const lines = () => (existsSync(file) ? readFileSync(file, 'utf8').split('\n').filter(Boolean) : []);
const params = z.object({ name: z.literal('build.finished'), cursor: z.string().nullish() }).passthrough();
const server = new Server({ name: 'builds', version: '1' }, { capabilities: { tools: {} } });
server.setRequestHandler(ListToolsRequestSchema, () => ({ tools: [] }));
server.setRequestHandler(z.object({ method: z.literal('events/poll'), params }), ({ params }) => {
  const known = lines();
  const news = params.cursor == null ? [] : known.slice(Number(params.cursor));
  const events = news.map(id => ({ eventId: id, name: params.name, timestamp: new Date().toISOString(), data: {} }));
  return { events, cursor: String(known.length), truncated: false, hasMore: false };
});
await server.connect(new StdioServerTransport());
