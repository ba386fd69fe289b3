// The SDK's own retries against a namespace of one throughput unit: its sends succeed in the end.
import { readFileSync } from "node:fs";
import { EventHubProducerClient } from "@azure/event-hubs";

const { connectionString, hub, sends, bytes } = JSON.parse(readFileSync(0, "utf8"));
const client = new EventHubProducerClient(connectionString, hub, {
  retryOptions: { maxRetries: 10, retryDelayInMs: 200, maxRetryDelayInMs: 1000 },
});
await client.getEventHubProperties();
const started = Date.now();
// All at once: far more than a quarter of a second's worth, so most are refused at first.
const outcomes = await Promise.allSettled(
  Array.from({ length: sends }, (_, i) =>
    client.sendBatch([{ body: Buffer.alloc(bytes, 128 + (i % 100)) }], { partitionId: "0" }),
  ),
);
await client.close();
const failed = outcomes.filter((outcome) => outcome.status === "rejected");
console.log(JSON.stringify({
  sent: outcomes.length - failed.length,
  first: failed.length ? `${failed[0].reason}` : null,
  milliseconds: Date.now() - started,
}));
