// Runs every case at once and prints one JSON object: case name -> null, or why it failed.
// The world comes in as JSON on standard input: connection strings, hubs, partitions.
import { readFileSync } from "node:fs";
import {
  EventHubBufferedProducerClient,
  EventHubConsumerClient,
  EventHubProducerClient,
} from "@azure/event-hubs";
import WebSocket from "ws";

export const world = JSON.parse(readFileSync(0, "utf8"));
const CASE_DEADLINE_MS = 60_000;

export const takeHub = () => world.hubs.pop();
export const takeSpot = () => world.spots.pop();

// What leads the SDK to this server over a transport (protocol.md 1.2).
export function options(transport = "tcp") {
  const retryOptions = { maxRetries: 0, timeoutInMs: 30_000, retryDelayInMs: 10 };
  if (transport === "tcp") return { retryOptions };
  const port = transport === "websocket" ? world.httpsPort : world.amqpsPort;
  const result = { retryOptions, customEndpointAddress: `sb://localhost:${port}` };
  if (transport === "websocket") result.webSocketOptions = { webSocket: WebSocket };
  return result;
}

export function connectionString(transport = "tcp") {
  return transport === "tcp" ? world.plain : world.tls;
}

export function producer(hub, { transport, text, ...more } = {}) {
  return new EventHubProducerClient(text ?? connectionString(transport), hub, {
    ...options(transport),
    ...more,
  });
}

export function buffered(hub, more) {
  return new EventHubBufferedProducerClient(world.plain, hub, { ...options(), ...more });
}

export function consumer(hub, { transport, text, group = "$Default", store, ...more } = {}) {
  const where = text ?? connectionString(transport);
  const all = { ...options(transport), ...more };
  return store
    ? new EventHubConsumerClient(group, where, hub, store, all)
    : new EventHubConsumerClient(group, where, hub, all);
}

export async function send(hub, bodies, where, more) {
  const client = producer(hub, more);
  try {
    await client.sendBatch(bodies.map((body) => ({ body })), where);
  } finally {
    await client.close();
  }
}

// Reads that many events of a partition; rejects with what processError got.
export async function read(hub, partition, count, { position, client: more, ...subscribe } = {}) {
  const client = consumer(hub, more);
  const received = [];
  try {
    await new Promise((resolve, reject) => {
      client.subscribe(
        partition,
        {
          processEvents: async (events, context) => {
            received.push(...events);
            received.context = context;
            if (received.length >= count) resolve();
          },
          processError: async (error) => reject(error),
        },
        { startPosition: position ?? { offset: "-1" }, maxWaitTimeInSeconds: 1, ...subscribe },
      );
    });
  } finally {
    await client.close();
  }
  return received;
}

// A reader in the background: `next()` waits for an event or rejects with the error.
export function reading(hub, partition, { client: more, ...subscribe } = {}) {
  const client = consumer(hub, more);
  const got = [];
  let wake = () => {};
  const put = (item) => {
    got.push(item);
    wake();
  };
  client.subscribe(
    partition,
    {
      processEvents: async (events) => events.forEach((event) => put({ event })),
      processError: async (error) => put({ error }),
    },
    { startPosition: { offset: "-1" }, maxWaitTimeInSeconds: 1, ...subscribe },
  );
  const take = async () => {
    while (got.length === 0) await new Promise((resolve) => (wake = resolve));
    return got.shift();
  };
  return {
    next: async () => {
      const { event, error } = await take();
      if (error) throw error;
      return event;
    },
    error: async () => {
      for (;;) {
        const { error } = await take();
        if (error) return error;
      }
    },
    close: () => client.close(),
  };
}

export async function failing(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("it did not fail");
}

export async function run(cases) {
  const one = async (name, work) => {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error("took too long")), CASE_DEADLINE_MS);
    });
    try {
      await Promise.race([work(), late]);
      return [name, null];
    } catch (error) {
      return [name, `${error?.code ?? ""} ${error?.stack ?? error}`];
    } finally {
      clearTimeout(timer);
    }
  };
  const ended = await Promise.all(Object.entries(cases).map(([name, work]) => one(name, work)));
  process.stdout.write(JSON.stringify(Object.fromEntries(ended)) + "\n");
  process.exit(0); // clients of failed cases may still be trying
}
