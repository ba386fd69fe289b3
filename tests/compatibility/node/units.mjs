// The SDK's own retries against a namespace of one throughput unit: its sends succeed in the end.
import { readFileSync } from "node:fs";
import { EventHubProducerClient } from "@azure/event-hubs";

const { connectionString, hub, first, sends } = JSON.parse(readFileSync(0, "utf8"));
const client = new EventHubProducerClient(connectionString, hub, {
  retryOptions: { maxRetries: 60, retryDelayInMs: 300, maxRetryDelayInMs: 1000 },
});
const partitionId = "0";
await client.sendBatch([{ body: Buffer.from("ready") }], { partitionId });
// More than a second's worth: it is taken as a whole, and what comes next is refused for a while.
await client.sendBatch(
  Array.from({ length: first - 1 }, () => ({ body: Buffer.from("x") })), { partitionId },
);
const started = Date.now();
const outcomes = await Promise.allSettled(
  Array.from({ length: sends }, (_, i) =>
    client.sendBatch([{ body: Buffer.from([i]) }], { partitionId }),
  ),
);
await client.close();
const failed = outcomes.filter((outcome) => outcome.status === "rejected");
console.log(JSON.stringify({
  sent: outcomes.length - failed.length,
  failed: failed.length ? `${failed[0].reason}` : null,
  milliseconds: Date.now() - started,
}));
