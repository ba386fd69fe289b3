// @azure/event-hubs against Penstock; each exported function is one test of test_javascript.py.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { earliestEventPosition, latestEventPosition } from "@azure/event-hubs";
import { ContainerClient } from "@azure/storage-blob";
import { BlobCheckpointStore } from "@azure/eventhubs-checkpointstore-blob";
import {
  buffered,
  connectionString,
  consumer,
  failing,
  producer,
  read,
  reading,
  run,
  send,
  takeHub,
  takeSpot,
  world,
} from "./harness.mjs";

const bodies = (events) => events.map((event) => event.body);

async function goesThrough(transport) {
  const [hub, partitionId] = takeSpot();
  await send(hub, ["one", { two: 2 }, [3]], { partitionId }, { transport });
  const received = await read(hub, partitionId, 3, { client: { transport } });
  assert.deepEqual(bodies(received), ["one", { two: 2 }, [3]]);
  assert.deepEqual(received.map((e) => e.sequenceNumber), [0, 1, 2]);
  const client = producer(hub, { transport });
  const properties = await client.getEventHubProperties();
  assert.equal(properties.name, hub);
  assert.equal(properties.partitionIds.length, 32);
  assert.ok(properties.createdOn instanceof Date && properties.createdOn <= new Date());
  await client.close();
}

async function keyedBatch() {
  const hub = takeHub();
  const client = producer(hub);
  const batch = await client.createBatch({ partitionKey: "key1" });
  assert.equal(batch.maxSizeInBytes, 262144);
  assert.ok(batch.tryAdd({ body: "a" }) && batch.tryAdd({ body: "b" }));
  await client.sendBatch(batch);
  await client.sendBatch([{ body: "c" }], { partitionKey: "key1" });
  await client.close();
  const received = await read(hub, "3", 3); // protocol.md 8.2
  assert.deepEqual(bodies(received), ["a", "b", "c"]);
  assert.deepEqual(received.map((e) => e.partitionKey), ["key1", "key1", "key1"]);
}

async function fullBatch() {
  const [hub, partitionId] = takeSpot();
  const client = producer(hub);
  const batch = await client.createBatch({ partitionId });
  let count = 0;
  // Not a digit: the SDK reads every body as JSON if it can.
  while (batch.tryAdd({ body: Buffer.alloc(3000, 128 + (count % 128)) })) count += 1;
  assert.ok(count > 80);
  await client.sendBatch(batch);
  await client.close();
  const received = await read(hub, partitionId, count);
  assert.equal(received.length, count);
  assert.ok(received.every((e, n) => e.body.length === 3000 && e.body[0] === 128 + (n % 128)));
}

async function roundRobin() {
  const hub = takeHub();
  const client = producer(hub);
  for (let n = 0; n < 8; n += 1) await client.sendBatch([{ body: n }]);
  for (const id of ["0", "1", "2", "3"]) {
    assert.equal((await client.getPartitionProperties(id)).lastEnqueuedSequenceNumber, 1);
  }
  await client.close();
}

async function buffers(more, hub) {
  const failures = [];
  let sent = 0;
  const client = buffered(hub, {
    maxWaitTimeInMs: 100,
    onSendEventsErrorHandler: async (context) => failures.push(context.error),
    onSendEventsSuccessHandler: async (context) => {
      sent += context.events.length;
    },
    ...more,
  });
  for (let n = 0; n < 90; n += 1) {
    await client.enqueueEvent({ body: n }, n % 3 ? { partitionKey: "key1" } : { partitionId: "0" });
  }
  await client.close({ flush: true });
  assert.deepEqual(failures, []);
  assert.equal(sent, 90);
  // JS places keys itself: its 3 is our 3 (protocol.md 8.1).
  const [direct, keyed] = await Promise.all([read(hub, "0", 30), read(hub, "3", 60)]);
  assert.deepEqual(bodies(direct), Array.from({ length: 30 }, (_, n) => n * 3));
  assert.deepEqual(bodies(keyed), Array.from({ length: 90 }, (_, n) => n).filter((n) => n % 3));
  return direct;
}

async function idempotentBuffer() {
  const hub = takeHub();
  const received = await buffers({ enableIdempotentRetries: true }, hub);
  const raw = received.map((e) => e.getRawAmqpMessage().messageAnnotations);
  const numbers = raw.map((a) => a["com.microsoft:producer-sequence-number"]);
  assert.deepEqual(numbers, numbers.map((_, n) => numbers[0] + n));
  assert.equal(new Set(raw.map((a) => String(a["com.microsoft:producer-id"]))).size, 1);
}

async function positions() {
  const [hub, partitionId] = takeSpot();
  const client = producer(hub);
  await client.sendBatch([{ body: 0 }, { body: 1 }, { body: 2 }], { partitionId });
  await new Promise((resolve) => setTimeout(resolve, 10));
  await client.sendBatch([{ body: 3 }], { partitionId });
  const info = await client.getPartitionProperties(partitionId);
  await client.close();
  const all = await read(hub, partitionId, 4);
  assert.deepEqual(bodies(all), [0, 1, 2, 3]);
  assert.equal(info.beginningSequenceNumber, 0);
  assert.equal(info.lastEnqueuedSequenceNumber, 3);
  assert.equal(info.lastEnqueuedOffset, all[3].offset);
  assert.equal(info.isEmpty, false);
  assert.equal(Number(info.lastEnqueuedOnUtc), Number(all[3].enqueuedTimeUtc));
  const from = async (position) => (await read(hub, partitionId, 1, { position }))[0].body;
  assert.equal(await from(earliestEventPosition), 0);
  assert.equal(await from({ offset: all[1].offset }), 2);
  assert.equal(await from({ offset: all[1].offset, isInclusive: true }), 1);
  assert.equal(await from({ sequenceNumber: 1 }), 2);
  assert.equal(await from({ sequenceNumber: 1, isInclusive: true }), 1);
  assert.equal(await from({ enqueuedOn: all[0].enqueuedTimeUtc }), 3);
  assert.equal(await from({ enqueuedOn: new Date(0) }), 0);
}

async function latest() {
  const [hub, partitionId] = takeSpot();
  await send(hub, ["before"], { partitionId });
  const reader = reading(hub, partitionId, { startPosition: latestEventPosition });
  const client = producer(hub);
  const sending = setInterval(() => client.sendBatch([{ body: "after" }], { partitionId }), 200);
  try {
    assert.equal((await reader.next()).body, "after"); // no callback tells of an idle attach
  } finally {
    clearInterval(sending);
    await reader.close();
    await client.close();
  }
}

async function runtimeMetrics() {
  const [hub, partitionId] = takeSpot();
  await send(hub, ["a", "b"], { partitionId });
  const received = await read(hub, partitionId, 2, { trackLastEnqueuedEventProperties: true });
  const last = received.context.lastEnqueuedEventProperties;
  assert.equal(last.sequenceNumber, 1);
  assert.equal(last.offset, received[1].offset);
  assert.equal(Number(last.enqueuedOn), Number(received[1].enqueuedTimeUtc));
  assert.ok(last.retrievedOn instanceof Date && !Number.isNaN(Number(last.retrievedOn)));
}

async function values() {
  const [hub, partitionId] = takeSpot();
  const when = new Date(1_700_000_000_123);
  const properties = {
    text: "ünïcödé",
    whole: 7,
    large: 2 ** 40,
    negative: -3,
    fraction: 1.5,
    yes: true,
    no: false,
    when,
    bytes: Buffer.from([0, 255]),
    nothing: null,
  };
  const event = {
    body: Buffer.from([1, 2, 255]),
    contentType: "application/x",
    correlationId: "c",
    messageId: "m",
    properties,
  };
  const client = producer(hub);
  await client.sendBatch([event], { partitionId });
  await client.sendBatch([{ body: null }, { body: "" }, { body: 0 }], { partitionId });
  await client.close();
  const [first, ...rest] = await read(hub, partitionId, 4);
  assert.deepEqual(first.body, event.body);
  assert.deepEqual(
    [first.contentType, first.correlationId, first.messageId],
    ["application/x", "c", "m"],
  );
  // The SDK hands out dates as numbers and spoils buffers; the message itself has them.
  const raw = first.getRawAmqpMessage().applicationProperties;
  assert.deepEqual(raw, properties);
  assert.equal(first.properties.when, Number(when));
  assert.equal(first.properties.text, properties.text);
  assert.deepEqual(bodies(rest), [null, "", 0]);
}

async function annotatedMessages() {
  const [hub, partitionId] = takeSpot();
  const id = randomUUID();
  const message = (body, bodyType) => ({
    body,
    bodyType,
    header: { durable: true, priority: 3 },
    properties: { messageId: id, groupId: "g", groupSequence: 9, subject: "s" },
    applicationProperties: { a: 1 },
    messageAnnotations: { "x-opt-mine": "kept" },
    footer: { end: "yes" },
  });
  const client = producer(hub);
  await client.sendBatch(
    [message({ deep: [1, "two"] }, "value"), message([[1, 2], ["three"]], "sequence")],
    { partitionId },
  );
  await client.close();
  const received = await read(hub, partitionId, 2);
  assert.deepEqual(bodies(received), [{ deep: [1, "two"] }, [[1, 2], ["three"]]]);
  const raw = received.map((e) => e.getRawAmqpMessage());
  assert.deepEqual(raw.map((each) => each.bodyType), ["value", "sequence"]);
  for (const each of raw) {
    assert.equal(each.properties.messageId, id);
    assert.deepEqual([each.properties.groupId, each.properties.groupSequence], ["g", 9]);
    assert.equal(each.messageAnnotations["x-opt-mine"], "kept");
    assert.deepEqual(each.footer, { end: "yes" });
  }
}

async function sentOn() {
  const [first, second] = [takeSpot(), takeSpot()];
  const client = producer(first[0]);
  await client.sendBatch([{ body: "filler" }, { body: "x", properties: { a: 1 } }], {
    partitionId: first[1],
  });
  await client.close();
  const [, received] = await read(first[0], first[1], 2);
  const other = producer(second[0]);
  await other.sendBatch([received], { partitionId: second[1] });
  await other.close();
  const [again] = await read(second[0], second[1], 1);
  assert.deepEqual([again.body, again.properties, again.sequenceNumber], ["x", { a: 1 }, 0]);
}

async function ownerLevels() {
  const [hub, partitionId] = takeSpot();
  await send(hub, ["one"], { partitionId });
  const low = reading(hub, partitionId, { ownerLevel: 1 });
  await low.next();
  const high = reading(hub, partitionId, { ownerLevel: 2 });
  await high.next();
  const displaced = await low.error();
  assert.equal(displaced.code, "ReceiverDisconnectedError");
  assert.match(displaced.message, /New receiver .* with higher epoch of '2' is created/);
  const lower = reading(hub, partitionId, { ownerLevel: 0 });
  assert.equal((await lower.error()).code, "ReceiverDisconnectedError");
  const shared = reading(hub, partitionId);
  const refused = await shared.error();
  assert.equal(refused.code, "ReceiverDisconnectedError");
  assert.match(refused.message, /non-epoch receiver is not allowed/);
  await send(hub, ["two"], { partitionId });
  assert.equal((await high.next()).body, "two");
  await Promise.all([low, high, lower, shared].map((each) => each.close()));
}

async function sixReaders() {
  const [hub, partitionId] = takeSpot();
  await send(hub, ["one"], { partitionId });
  const five = [1, 2, 3, 4, 5].map(() => reading(hub, partitionId));
  await Promise.all(five.map((each) => each.next()));
  const sixth = reading(hub, partitionId);
  const refused = await sixth.error();
  assert.equal(refused.code, "QuotaExceededError");
  assert.match(refused.message, /maximum number of allowed receivers .* which is 5/);
  await Promise.all([sixth, ...five].map((each) => each.close()));
}

// --- errors, by the SDK's own code ----------------------------------------------------------------

async function failsToSend(hub, more, where, body = "x") {
  const client = producer(hub, more);
  const error = await failing(client.sendBatch([{ body }], where));
  await client.close();
  return error;
}

async function unknownHub() {
  const error = await failsToSend("no-such-hub");
  assert.equal(error.code, "MessagingEntityNotFoundError");
  assert.equal(error.retryable, false);
  assert.match(error.message, /The messaging entity .* could not be found/);
  const client = producer("no-such-hub");
  const unread = await failing(client.getEventHubProperties());
  assert.equal(unread.code, "MessagingEntityNotFoundError");
  await client.close();
}

async function unknownGroup() {
  const [hub, partitionId] = takeSpot();
  const error = await failing(read(hub, partitionId, 1, { client: { group: "nobody" } }));
  assert.equal(error.code, "MessagingEntityNotFoundError");
}

async function unknownPartition() {
  const hub = takeHub();
  for (const partitionId of ["4", "XYZ", "-1", "1000"]) {
    const sending = await failsToSend(hub, {}, { partitionId });
    assert.equal(sending.code, "ArgumentOutOfRangeError", partitionId);
    const receiving = await failing(read(hub, partitionId, 1));
    assert.equal(receiving.code, "ArgumentOutOfRangeError", partitionId);
  }
  const client = producer(hub);
  const asking = await failing(client.getPartitionProperties("4"));
  assert.equal(asking.code, "ArgumentOutOfRangeError");
  await client.close();
}

async function badPositions() {
  const [hub, partitionId] = takeSpot();
  await send(hub, ["one"], { partitionId });
  for (const position of [{ offset: "999999" }, { offset: "twelve" }, { sequenceNumber: 77 }]) {
    const error = await failing(read(hub, partitionId, 1, { position }));
    assert.equal(error.code, "ArgumentError", JSON.stringify(position));
    assert.equal(error.retryable, false);
    assert.match(error.message, /The supplied (offset|sequence number) '.*' is invalid/);
  }
}

async function badKeys() {
  const [hub, partitionId] = takeSpot();
  const text = world.plain.replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=wrong");
  const error = await failsToSend(hub, { text });
  assert.equal(error.code, "UnauthorizedError");
  assert.match(error.message, /InvalidSignature: The token has an invalid signature/);
  const unread = await failing(read(hub, partitionId, 1, { client: { text } }));
  assert.equal(unread.code, "UnauthorizedError");
}

async function missingRights() {
  const [hub, partitionId] = takeSpot();
  const sending = await failsToSend(hub, { text: world.listener });
  assert.equal(sending.code, "UnauthorizedError");
  assert.match(sending.message, /'Send' claim/);
  const reader = { client: { text: world.sender } };
  const receiving = await failing(read(hub, partitionId, 1, reader));
  assert.equal(receiving.code, "UnauthorizedError");
  assert.match(receiving.message, /'Listen' claim/);
}

async function tooLarge() {
  const [hub, partitionId] = takeSpot();
  const body = Buffer.alloc(300_000);
  const error = await failsToSend(hub, {}, { partitionId }, body);
  assert.equal(error.code, "MessageTooLargeError");
  assert.match(error.message, /exceeds the limit \(262144 bytes\) currently allowed on the link/);
  const client = producer(hub);
  const batch = await client.createBatch();
  assert.equal(batch.tryAdd({ body }), false);
  await client.close();
}

async function longKey() {
  const error = await failsToSend(takeHub(), {}, { partitionKey: "k".repeat(129) });
  assert.equal(error.code, "ArgumentError");
}

// --- checkpoints ------------------------------------------------------------------------------------

async function blobCheckpoints() {
  if (!world.azurite) return;
  const hub = takeHub();
  const container = new ContainerClient(world.azurite, `js-${randomUUID()}`);
  await container.create();
  const store = new BlobCheckpointStore(container);
  const client = producer(hub);
  for (const partitionId of ["0", "1", "2", "3"]) {
    await client.sendBatch([{ body: `${partitionId}a` }, { body: `${partitionId}b` }], {
      partitionId,
    });
  }
  const process = async (wanted, until) => {
    const seen = [];
    const processors = [1, 2].map(() =>
      consumer(hub, { store, loadBalancingOptions: { updateIntervalInMs: 300 } }),
    );
    await new Promise((resolve, reject) => {
      for (const each of processors) {
        each.subscribe(
          {
            processEvents: async (events, context) => {
              seen.push(...bodies(events));
              if (events.length) await context.updateCheckpoint(events[events.length - 1]);
              if (new Set(seen).size >= wanted) resolve();
            },
            processError: async (error) => {
              // Moving a partition from one processor to the other is not a failure.
              if (error.code !== "ReceiverDisconnectedError") reject(error);
            },
          },
          { startPosition: { offset: "-1" }, maxWaitTimeInSeconds: 1 },
        );
      }
    });
    await Promise.all(processors.map((each) => each.close()));
    return seen;
  };
  const first = await process(8);
  assert.equal(new Set(first).size, 8);
  await client.sendBatch([{ body: "2c" }], { partitionId: "2" });
  await client.close();
  assert.deepEqual(await process(1), ["2c"]); // everything else lies before a checkpoint
}

await run({
  publishes_and_reads_over_tcp: () => goesThrough("tcp"),
  publishes_and_reads_over_tls: () => goesThrough("tls"),
  publishes_and_reads_over_websocket: () => goesThrough("websocket"),
  keyed_batches_share_a_partition: keyedBatch,
  batch_is_filled_to_the_link_limit: fullBatch,
  batches_without_a_key_are_spread: roundRobin,
  buffered_producer_delivers_in_order: () => buffers({}, takeHub()),
  idempotent_producer_delivers_in_order: idempotentBuffer,
  positions_are_exclusive_or_inclusive: positions,
  latest_sees_what_comes_after: latest,
  last_enqueued_event_is_told_when_asked: runtimeMetrics,
  properties_of_every_type_come_back: values,
  annotated_messages_come_back: annotatedMessages,
  received_event_can_be_sent_on: sentOn,
  owner_levels_displace_and_refuse: ownerLevels,
  sixth_reader_is_refused: sixReaders,
  unknown_hub_is_not_found: unknownHub,
  unknown_group_is_not_found: unknownGroup,
  unknown_partition_is_out_of_range: unknownPartition,
  bad_position_is_an_argument_error: badPositions,
  bad_key_is_unauthorized: badKeys,
  missing_right_is_unauthorized: missingRights,
  large_event_is_too_large: tooLarge,
  long_partition_key_is_an_argument_error: longKey,
  blob_checkpoints_are_resumed: blobCheckpoints,
});
