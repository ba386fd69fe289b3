// azure-messaging-eventhubs against Penstock: runs every case at once and prints one line for each,
// its name, a tab, and nothing or why it failed. The world comes in as key=value lines.
import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.AmqpTransportType;
import com.azure.core.amqp.exception.AmqpErrorCondition;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.messaging.eventhubs.CheckpointStore;
import com.azure.messaging.eventhubs.EventData;
import com.azure.messaging.eventhubs.EventDataBatch;
import com.azure.messaging.eventhubs.EventHubBufferedProducerClientBuilder;
import com.azure.messaging.eventhubs.EventHubClientBuilder;
import com.azure.messaging.eventhubs.EventHubConsumerAsyncClient;
import com.azure.messaging.eventhubs.EventHubConsumerClient;
import com.azure.messaging.eventhubs.EventHubProducerClient;
import com.azure.messaging.eventhubs.EventProcessorClientBuilder;
import com.azure.messaging.eventhubs.LoadBalancingStrategy;
import com.azure.messaging.eventhubs.models.Checkpoint;
import com.azure.messaging.eventhubs.models.CreateBatchOptions;
import com.azure.messaging.eventhubs.models.EventPosition;
import com.azure.messaging.eventhubs.models.PartitionEvent;
import com.azure.messaging.eventhubs.models.PartitionOwnership;
import com.azure.messaging.eventhubs.models.ReceiveOptions;
import com.azure.messaging.eventhubs.models.SendOptions;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Queue;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import reactor.core.Disposable;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

public final class Compatibility {
    private static final Duration WAIT = Duration.ofSeconds(20);
    private static final Map<String, String> WORLD = new HashMap<>();
    private static final Queue<String> HUBS = new ArrayDeque<>();
    private static final Queue<String[]> SPOTS = new ArrayDeque<>();

    private interface Case {
        void run() throws Exception;
    }

    private static synchronized String takeHub() {
        return HUBS.remove();
    }

    private static synchronized String[] takeSpot() {
        return SPOTS.remove();
    }

    private static void equal(Object got, Object wanted) {
        if (!Objects.equals(got, wanted)) {
            throw new AssertionError("got " + got + ", wanted " + wanted);
        }
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    // --- clients --------------------------------------------------------------------------------

    private static EventHubClientBuilder client(String transport, String hub) {
        AmqpRetryOptions retry = new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(WAIT);
        EventHubClientBuilder builder = new EventHubClientBuilder().retryOptions(retry)
            .consumerGroup(EventHubClientBuilder.DEFAULT_CONSUMER_GROUP_NAME);
        if (transport.equals("tcp") || WORLD.containsKey(transport)) {
            return builder.connectionString(WORLD.getOrDefault(transport, WORLD.get("plain")), hub);
        }
        String port = WORLD.get(transport.equals("tls") ? "amqpsPort" : "httpsPort");
        builder.connectionString(WORLD.get("secure"), hub)
            .customEndpointAddress("https://localhost:" + port);
        return transport.equals("tls")
            ? builder
            : builder.transportType(AmqpTransportType.AMQP_WEB_SOCKETS);
    }

    private static void send(String transport, String hub, CreateBatchOptions where, String... bodies) {
        try (EventHubProducerClient producer = client(transport, hub).buildProducerClient()) {
            EventDataBatch batch = producer.createBatch(where);
            for (String body : bodies) {
                check(batch.tryAdd(new EventData(body)), "the batch is full");
            }
            producer.send(batch);
        }
    }

    private static CreateBatchOptions to(String partition) {
        return new CreateBatchOptions().setPartitionId(partition);
    }

    private static List<PartitionEvent> read(String transport, String hub, String partition, int count,
        EventPosition position) {
        try (EventHubConsumerClient consumer = client(transport, hub).buildConsumerClient()) {
            List<PartitionEvent> events = new ArrayList<>();
            consumer.receiveFromPartition(partition, count, position, WAIT).forEach(events::add);
            return events;
        }
    }

    private static List<String> bodies(List<PartitionEvent> events) {
        List<String> found = new ArrayList<>();
        events.forEach(event -> found.add(event.getData().getBodyAsString()));
        return found;
    }

    // --- cases ----------------------------------------------------------------------------------

    private static void goesThrough(String transport) {
        String[] spot = takeSpot();
        send(transport, spot[0], to(spot[1]), "one", "two");
        List<PartitionEvent> events = read(transport, spot[0], spot[1], 2, EventPosition.earliest());
        equal(bodies(events), List.of("one", "two"));
        EventData last = events.get(1).getData();
        equal(last.getSequenceNumber(), 1L);
        try (EventHubConsumerClient consumer = client(transport, spot[0]).buildConsumerClient()) {
            equal(consumer.getEventHubProperties().getName(), spot[0]);
            equal(consumer.getPartitionIds().stream().count(), 32L);
            var info = consumer.getPartitionProperties(spot[1]);
            equal(info.getLastEnqueuedSequenceNumber(), 1L);
            equal(info.getLastEnqueuedOffset(), last.getOffsetString());
            equal(info.getLastEnqueuedTime(), last.getEnqueuedTime());
            equal(info.isEmpty(), false);
        }
    }

    private static void keyed() {
        String hub = takeHub();
        send("tcp", hub, new CreateBatchOptions().setPartitionKey("key1"), "one", "two");
        List<PartitionEvent> events = read("tcp", hub, "3", 2, EventPosition.earliest());
        equal(bodies(events), List.of("one", "two"));
        equal(events.get(0).getData().getPartitionKey(), "key1");
    }

    private static void large() {
        String[] spot = takeSpot();
        String body = "0123456789abcdef".repeat(16_000);
        try (EventHubProducerClient producer = client("tcp", spot[0]).buildProducerClient()) {
            equal(producer.createBatch().getMaxSizeInBytes(), 262_144);
        }
        send("tcp", spot[0], to(spot[1]), body);
        equal(bodies(read("tcp", spot[0], spot[1], 1, EventPosition.earliest())), List.of(body));
    }

    private static void positions() throws Exception {
        String[] spot = takeSpot();
        send("tcp", spot[0], to(spot[1]), "0", "1", "2");
        Thread.sleep(10);
        send("tcp", spot[0], to(spot[1]), "3");
        List<PartitionEvent> all = read("tcp", spot[0], spot[1], 4, EventPosition.earliest());
        EventData first = all.get(0).getData();
        EventData second = all.get(1).getData();
        Map<EventPosition, String> wanted = new LinkedHashMap<>();
        wanted.put(EventPosition.fromOffsetString(second.getOffsetString()), "2");
        wanted.put(EventPosition.fromSequenceNumber(1), "2");
        wanted.put(EventPosition.fromSequenceNumber(1, true), "1");
        wanted.put(EventPosition.fromEnqueuedTime(first.getEnqueuedTime()), "3");
        for (Map.Entry<EventPosition, String> each : wanted.entrySet()) {
            equal(bodies(read("tcp", spot[0], spot[1], 1, each.getKey())), List.of(each.getValue()));
        }
    }

    private static void properties() {
        String[] spot = takeSpot();
        Map<String, Object> sent = new HashMap<>();
        sent.put("string", "ünïcödé");
        sent.put("boolean", true);
        sent.put("byte", (byte) -7);
        sent.put("short", (short) -700);
        sent.put("int", -70_000);
        sent.put("long", 1L << 40);
        sent.put("float", 0.5f);
        sent.put("double", 0.1);
        sent.put("char", 'x');
        sent.put("uuid", UUID.nameUUIDFromBytes(new byte[] {1}));
        sent.put("date", new Date(1_700_000_000_123L));
        EventData event = new EventData("x");
        event.getProperties().putAll(sent);
        event.setContentType("text/plain").setCorrelationId("correlation").setMessageId("message");
        try (EventHubProducerClient producer = client("tcp", spot[0]).buildProducerClient()) {
            producer.send(List.of(event), new SendOptions().setPartitionId(spot[1]));
        }
        EventData got = read("tcp", spot[0], spot[1], 1, EventPosition.earliest()).get(0).getData();
        equal(got.getProperties(), sent);
        equal(got.getMessageId(), "message");
        equal(got.getCorrelationId(), "correlation");
        equal(got.getContentType(), "text/plain");
    }

    private static void lastEnqueued() {
        String[] spot = takeSpot();
        send("tcp", spot[0], to(spot[1]), "one", "two");
        ReceiveOptions options = new ReceiveOptions().setTrackLastEnqueuedEventProperties(true);
        try (EventHubConsumerClient consumer = client("tcp", spot[0]).buildConsumerClient()) {
            PartitionEvent event = consumer
                .receiveFromPartition(spot[1], 1, EventPosition.earliest(), WAIT, options)
                .iterator().next();
            equal(event.getLastEnqueuedEventProperties().getSequenceNumber(), 1L);
            check(event.getLastEnqueuedEventProperties().getRetrievalTime() != null, "no time");
        }
    }

    private static void buffered() throws Exception {
        String hub = takeHub();
        LinkedBlockingQueue<Object> outcomes = new LinkedBlockingQueue<>();
        var producer = new EventHubBufferedProducerClientBuilder()
            .connectionString(WORLD.get("plain"), hub)
            .maxWaitTime(Duration.ofMillis(200))
            .onSendBatchSucceeded(context -> context.getEvents().forEach(event -> outcomes.add("sent")))
            .onSendBatchFailed(context -> outcomes.add(String.valueOf(context.getThrowable())))
            .buildClient();
        for (int number = 0; number < 40; number++) {
            producer.enqueueEvent(new EventData("" + number), new SendOptions().setPartitionId("1"));
        }
        producer.flush();
        // On a busy machine flush() may return while the SDK still sends a batch, which close() then ends.
        for (int number = 0; number < 40; number++) {
            equal(outcomes.poll(60, TimeUnit.SECONDS), "sent");
        }
        producer.close();
        List<String> wanted = new ArrayList<>();
        for (int number = 0; number < 40; number++) {
            wanted.add("" + number);
        }
        equal(bodies(read("tcp", hub, "1", 40, EventPosition.earliest())), wanted);
    }

    private static void ownership() throws Exception {
        String[] spot = takeSpot();
        send("tcp", spot[0], to(spot[1]), "one");
        LinkedBlockingQueue<Object> low = new LinkedBlockingQueue<>();
        LinkedBlockingQueue<Object> high = new LinkedBlockingQueue<>();
        EventHubConsumerAsyncClient one = client("tcp", spot[0]).buildAsyncConsumerClient();
        EventHubConsumerAsyncClient two = client("tcp", spot[0]).buildAsyncConsumerClient();
        Disposable reading = listen(one, spot[1], 1, low);
        equal(low.poll(60, TimeUnit.SECONDS), "one");
        Disposable stealing = listen(two, spot[1], 2, high);
        equal(high.poll(60, TimeUnit.SECONDS), "one");
        AmqpException stolen = (AmqpException) low.poll(60, TimeUnit.SECONDS);
        equal(stolen.getErrorCondition(), AmqpErrorCondition.LINK_STOLEN);
        check(stolen.getMessage().contains("with higher epoch of '2'"), stolen.getMessage());
        listen(one, spot[1], 0, low);
        AmqpException refused = (AmqpException) low.poll(60, TimeUnit.SECONDS);
        equal(refused.getErrorCondition(), AmqpErrorCondition.LINK_STOLEN);
        send("tcp", spot[0], to(spot[1]), "two");
        equal(high.poll(60, TimeUnit.SECONDS), "two");
        reading.dispose();
        stealing.dispose();
        one.close();
        two.close();
    }

    private static Disposable listen(EventHubConsumerAsyncClient client, String partition, long level,
        LinkedBlockingQueue<Object> into) {
        ReceiveOptions options = new ReceiveOptions().setOwnerLevel(level);
        return client.receiveFromPartition(partition, EventPosition.earliest(), options)
            .subscribe(event -> into.add(event.getData().getBodyAsString()), into::add);
    }

    private static AmqpException failing(Case act) throws Exception {
        try {
            act.run();
        } catch (AmqpException error) {
            return error;
        } catch (RuntimeException error) {
            if (error.getCause() instanceof AmqpException) {
                return (AmqpException) error.getCause();
            }
            throw error;
        }
        throw new AssertionError("it did not fail");
    }

    private static void refusals() throws Exception {
        String[] spot = takeSpot();
        CreateBatchOptions anywhere = new CreateBatchOptions();
        AmqpException wrong = failing(() -> send("wrong", spot[0], anywhere, "x"));
        equal(wrong.getErrorCondition(), AmqpErrorCondition.UNAUTHORIZED_ACCESS);
        AmqpException listener = failing(() -> send("listener", spot[0], anywhere, "x"));
        equal(listener.getErrorCondition(), AmqpErrorCondition.UNAUTHORIZED_ACCESS);
        AmqpException hub = failing(() -> send("tcp", "no-such-hub", anywhere, "x"));
        equal(hub.getErrorCondition(), AmqpErrorCondition.NOT_FOUND);
        equal(hub.isTransient(), false);
        AmqpException partition = failing(() -> send("tcp", spot[0], to("99"), "x"));
        equal(partition.getErrorCondition(), AmqpErrorCondition.ARGUMENT_OUT_OF_RANGE_ERROR);
        AmqpException size = failing(() -> {
            try (EventHubProducerClient producer = client("tcp", spot[0]).buildProducerClient()) {
                producer.send(List.of(new EventData("x".repeat(300_000))));
            }
        });
        equal(size.getErrorCondition(), AmqpErrorCondition.LINK_PAYLOAD_SIZE_EXCEEDED);
        send("tcp", spot[0], to(spot[1]), "one");
        EventPosition beyond = EventPosition.fromSequenceNumber(77);
        AmqpException position = failing(() -> {
            EventHubConsumerAsyncClient consumer = client("tcp", spot[0]).buildAsyncConsumerClient();
            consumer.receiveFromPartition(spot[1], beyond).blockFirst(WAIT);
        });
        equal(position.getErrorCondition(), AmqpErrorCondition.ARGUMENT_ERROR);
    }

    private static void processor() throws Exception {
        String hub = takeHub();
        Set<String> wanted = new TreeSet<>();
        for (String partition : List.of("0", "1", "2", "3")) {
            send("tcp", hub, to(partition), partition + "a", partition + "b");
            wanted.addAll(List.of(partition + "a", partition + "b"));
        }
        MemoryStore store = new MemoryStore();
        equal(process(hub, store, 8), wanted);
        send("tcp", hub, to("2"), "2c");
        equal(process(hub, store, 1), Set.of("2c"));
    }

    private static Set<String> process(String hub, MemoryStore store, int count) throws Exception {
        Set<String> seen = new ConcurrentSkipListSet<>();
        CountDownLatch enough = new CountDownLatch(count);
        var processor = new EventProcessorClientBuilder()
            .connectionString(WORLD.get("plain"), hub)
            .consumerGroup(EventHubClientBuilder.DEFAULT_CONSUMER_GROUP_NAME)
            .checkpointStore(store)
            .loadBalancingStrategy(LoadBalancingStrategy.GREEDY)
            .loadBalancingUpdateInterval(Duration.ofMillis(500))
            .partitionOwnershipExpirationInterval(Duration.ofSeconds(2))
            .initialPartitionEventPosition(id -> EventPosition.earliest())
            .processEvent(context -> {
                context.updateCheckpoint();
                if (seen.add(context.getEventData().getBodyAsString())) {
                    enough.countDown();
                }
            })
            .processError(context -> { })
            .buildEventProcessorClient();
        processor.start();
        boolean done = enough.await(120, TimeUnit.SECONDS);
        processor.stop(Duration.ofSeconds(40));
        check(done, "saw only " + seen);
        return seen;
    }

    // Ownerships by compare-and-swap, the last checkpoint wins.
    private static final class MemoryStore implements CheckpointStore {
        private final Map<String, PartitionOwnership> ownerships = new ConcurrentHashMap<>();
        private final Map<String, Checkpoint> checkpoints = new ConcurrentHashMap<>();

        @Override
        public Flux<PartitionOwnership> listOwnership(String namespace, String hub, String group) {
            return Flux.fromIterable(List.copyOf(ownerships.values()));
        }

        @Override
        public synchronized Flux<PartitionOwnership> claimOwnership(List<PartitionOwnership> wanted) {
            List<PartitionOwnership> won = new ArrayList<>();
            for (PartitionOwnership each : wanted) {
                PartitionOwnership known = ownerships.get(each.getPartitionId());
                if (known == null || Objects.equals(known.getETag(), each.getETag())) {
                    each.setETag(UUID.randomUUID().toString());
                    each.setLastModifiedTime(System.currentTimeMillis());
                    ownerships.put(each.getPartitionId(), each);
                    won.add(each);
                }
            }
            return Flux.fromIterable(won);
        }

        @Override
        public Flux<Checkpoint> listCheckpoints(String namespace, String hub, String group) {
            return Flux.fromIterable(List.copyOf(checkpoints.values()));
        }

        @Override
        public Mono<Void> updateCheckpoint(Checkpoint checkpoint) {
            checkpoints.put(checkpoint.getPartitionId(), checkpoint);
            return Mono.empty();
        }
    }

    // --- running --------------------------------------------------------------------------------

    private static String failure(Case work) {
        try {
            work.run();
            return "";
        } catch (Throwable error) {
            StringBuilder text = new StringBuilder(String.valueOf(error));
            for (StackTraceElement line : error.getStackTrace()) {
                if (line.getClassName().startsWith("Compatibility")) {
                    text.append(" at line ").append(line.getLineNumber());
                }
            }
            return text.toString().replace('\n', ' ').replace('\t', ' ');
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] pair = line.split("=", 2);
            switch (pair[0]) {
                case "hub" -> HUBS.add(pair[1]);
                case "spot" -> SPOTS.add(pair[1].split(" "));
                default -> WORLD.put(pair[0], pair[1]);
            }
        }
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("publishes_and_reads_over_tcp", () -> goesThrough("tcp"));
        cases.put("publishes_and_reads_over_tls", () -> goesThrough("tls"));
        cases.put("publishes_and_reads_over_websocket", () -> goesThrough("websocket"));
        cases.put("keyed_batches_share_a_partition", Compatibility::keyed);
        cases.put("large_events_cross_in_many_frames", Compatibility::large);
        cases.put("positions_are_exclusive_or_inclusive", Compatibility::positions);
        cases.put("properties_of_every_type_come_back", Compatibility::properties);
        cases.put("last_enqueued_event_is_told_when_asked", Compatibility::lastEnqueued);
        cases.put("buffered_producer_delivers_in_order", Compatibility::buffered);
        cases.put("owner_levels_displace_and_refuse", Compatibility::ownership);
        cases.put("refusals_carry_their_condition", Compatibility::refusals);
        cases.put("processor_resumes_from_its_checkpoints", Compatibility::processor);
        ExecutorService threads = Executors.newCachedThreadPool();
        Map<String, Future<String>> running = new LinkedHashMap<>();
        cases.forEach((name, work) -> running.put(name, threads.submit(() -> failure(work))));
        for (Map.Entry<String, Future<String>> each : running.entrySet()) {
            System.out.println(each.getKey() + "\t" + each.getValue().get(240, TimeUnit.SECONDS));
        }
        System.exit(0);
    }
}
