// fetch publishes, in one piece, in a stream and as a batch; the SDK reads: types and bytes.
import { readFileSync } from "node:fs";
import { EventHubConsumerClient } from "@azure/event-hubs";

const { url, token, connectionString, hub, partition } = JSON.parse(readFileSync(0, "utf8"));
const BATCH = "application/vnd.microsoft.servicebus.json";

async function post(body, headers, more = {}) {
  const sent = { Authorization: token, ...headers };
  const answer = await fetch(url, { method: "POST", body, headers: sent, ...more });
  return [answer.status, await answer.text()];
}

async function* pieces() {
  for (let i = 0; i < 3; i++) yield new Uint8Array(70_000).fill(i);
}

const properties = JSON.stringify({ MessageId: "m-1", CorrelationId: "c-1", PartitionKey: "key" });
const batch = [
  { Body: "日本語", UserProperties: { text: "t", whole: 7, half: 0.5, yes: true } },
  { Body: "AP8=", IsBodyBase64: true, BrokerProperties: { ContentType: "image/png" } },
];
const answers = [
  await post(new Uint8Array([0, 255, 10, 13]), { Temp: '"21"', BrokerProperties: properties }),
  await post(pieces(), { "Content-Type": "application/octet-stream" }, { duplex: "half" }),
  await post(JSON.stringify(batch), { "Content-Type": BATCH }),
];

const client = new EventHubConsumerClient("$Default", connectionString, hub);
const events = [];
await new Promise((resolve, reject) => {
  client.subscribe(
    partition,
    {
      processEvents: async (some) => {
        events.push(...some);
        if (events.length >= 4) resolve();
      },
      processError: async (error) => reject(error),
    },
    { startPosition: { offset: "-1" }, maxWaitTimeInSeconds: 1, skipParsingBodyAsJson: true },
  );
});
await client.close();
console.log(JSON.stringify({
  answers,
  events: events.map((event) => ({
    hex: event.body.length < 100 ? Buffer.from(event.body).toString("hex") : null,
    length: event.body.length,
    contentType: event.contentType ?? null,
    messageId: event.messageId ?? null,
    correlationId: event.correlationId ?? null,
    partitionKey: event.partitionKey ?? null,
    properties: event.properties ?? null,
  })),
}));
