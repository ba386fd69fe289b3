// azeventhubs against Penstock: runs every case at once and prints one JSON object, case name -> null
// or why it failed. The world comes in as JSON on standard input.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/coder/websocket"
)

const deadline = 60 * time.Second

type spot [2]string // hub, partition

type worldT struct {
	Plain, TLS, Wrong, Listener string
	HTTPSPort                   int
	CAFile                      string
	Hubs                        []string
	Spots                       []spot
}

var (
	world worldT
	trust *tls.Config
	taken sync.Mutex
)

func takeHub() string {
	taken.Lock()
	defer taken.Unlock()
	hub := world.Hubs[0]
	world.Hubs = world.Hubs[1:]
	return hub
}

func takeSpot() spot {
	taken.Lock()
	defer taken.Unlock()
	found := world.Spots[0]
	world.Spots = world.Spots[1:]
	return found
}

func ptr[T any](value T) *T { return &value }

func check(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Errorf(format, args...))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func equal(got, want any) {
	check(reflect.DeepEqual(got, want), "got %#v, want %#v", got, want)
}

type client struct {
	text   string
	socket bool
}

func (c client) dialer() func(context.Context, azeventhubs.WebSocketConnParams) (net.Conn, error) {
	if !c.socket {
		return nil
	}
	return func(ctx context.Context, _ azeventhubs.WebSocketConnParams) (net.Conn, error) {
		url := fmt.Sprintf("wss://localhost:%d/$servicebus/websocket", world.HTTPSPort)
		web := &http.Client{Transport: &http.Transport{TLSClientConfig: trust}}
		options := &websocket.DialOptions{Subprotocols: []string{"amqp"}, HTTPClient: web}
		conn, _, err := websocket.Dial(ctx, url, options)
		if err != nil {
			return nil, err
		}
		return websocket.NetConn(context.Background(), conn, websocket.MessageBinary), nil
	}
}

func (c client) retry() azeventhubs.RetryOptions {
	return azeventhubs.RetryOptions{MaxRetries: -1, RetryDelay: time.Millisecond}
}

func (c client) producer(hub string) *azeventhubs.ProducerClient {
	options := &azeventhubs.ProducerClientOptions{
		TLSConfig: trust, NewWebSocketConn: c.dialer(), RetryOptions: c.retry(),
	}
	made, err := azeventhubs.NewProducerClientFromConnectionString(c.text, hub, options)
	must(err)
	return made
}

func (c client) consumer(hub, group string) *azeventhubs.ConsumerClient {
	options := &azeventhubs.ConsumerClientOptions{
		TLSConfig: trust, NewWebSocketConn: c.dialer(), RetryOptions: c.retry(),
	}
	made, err := azeventhubs.NewConsumerClientFromConnectionString(c.text, hub, group, options)
	must(err)
	return made
}

func (c client) send(ctx context.Context, hub string, where azeventhubs.EventDataBatchOptions, bodies ...string) error {
	producer := c.producer(hub)
	defer producer.Close(ctx)
	batch, err := producer.NewEventDataBatch(ctx, &where)
	if err != nil {
		return err
	}
	for _, body := range bodies {
		must(batch.AddEventData(&azeventhubs.EventData{Body: []byte(body)}, nil))
	}
	return producer.SendEventDataBatch(ctx, batch, nil)
}

func (c client) read(ctx context.Context, at spot, count int, position azeventhubs.StartPosition) ([]*azeventhubs.ReceivedEventData, error) {
	consumer := c.consumer(at[0], azeventhubs.DefaultConsumerGroup)
	defer consumer.Close(ctx)
	options := &azeventhubs.PartitionClientOptions{StartPosition: position}
	partition, err := consumer.NewPartitionClient(at[1], options)
	must(err)
	defer partition.Close(ctx)
	var all []*azeventhubs.ReceivedEventData
	for len(all) < count {
		events, err := partition.ReceiveEvents(ctx, count-len(all), nil)
		all = append(all, events...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

func bodies(events []*azeventhubs.ReceivedEventData) []string {
	var found []string
	for _, event := range events {
		found = append(found, string(event.Body))
	}
	return found
}

var earliest = azeventhubs.StartPosition{Earliest: ptr(true)}

func goesThrough(c client) func(context.Context) {
	return func(ctx context.Context) {
		at := takeSpot()
		must(c.send(ctx, at[0], azeventhubs.EventDataBatchOptions{PartitionID: &at[1]}, "one", "two"))
		events, err := c.read(ctx, at, 2, earliest)
		must(err)
		equal(bodies(events), []string{"one", "two"})
		equal(events[1].SequenceNumber, int64(1))
		check(events[1].Offset != "" && events[1].EnqueuedTime != nil, "no offset or time")
		producer := c.producer(at[0])
		defer producer.Close(ctx)
		hub, err := producer.GetEventHubProperties(ctx, nil)
		must(err)
		equal(len(hub.PartitionIDs), 32)
		info, err := producer.GetPartitionProperties(ctx, at[1], nil)
		must(err)
		equal(info.LastEnqueuedSequenceNumber, int64(1))
		equal(info.LastEnqueuedOffset, events[1].Offset)
		equal(info.IsEmpty, false)
	}
}

func keyed(ctx context.Context) {
	hub, c := takeHub(), client{text: world.Plain}
	where := azeventhubs.EventDataBatchOptions{PartitionKey: ptr("key1")}
	must(c.send(ctx, hub, where, "one", "two"))
	events, err := c.read(ctx, spot{hub, "3"}, 2, earliest)
	must(err)
	equal(bodies(events), []string{"one", "two"})
	equal(*events[0].PartitionKey, "key1")
}

func large(ctx context.Context) {
	at, c := takeSpot(), client{text: world.Plain}
	body := strings.Repeat("0123456789abcdef", 16_000)
	must(c.send(ctx, at[0], azeventhubs.EventDataBatchOptions{PartitionID: &at[1]}, body))
	events, err := c.read(ctx, at, 1, earliest)
	must(err)
	equal(string(events[0].Body), body)
	producer := c.producer(at[0])
	defer producer.Close(ctx)
	batch, err := producer.NewEventDataBatch(ctx, nil)
	must(err)
	err = batch.AddEventData(&azeventhubs.EventData{Body: make([]byte, 262_144)}, nil)
	check(errors.Is(err, azeventhubs.ErrEventDataTooLarge), "not too large: %v", err)
}

func positions(ctx context.Context) {
	at, c := takeSpot(), client{text: world.Plain}
	where := azeventhubs.EventDataBatchOptions{PartitionID: &at[1]}
	must(c.send(ctx, at[0], where, "0", "1", "2"))
	time.Sleep(10 * time.Millisecond)
	must(c.send(ctx, at[0], where, "3"))
	all, err := c.read(ctx, at, 4, earliest)
	must(err)
	for want, position := range map[string]azeventhubs.StartPosition{
		"2": {Offset: &all[1].Offset},
		"1": {Offset: &all[1].Offset, Inclusive: true},
		"3": {EnqueuedTime: all[0].EnqueuedTime},
		"0": {EnqueuedTime: all[0].EnqueuedTime, Inclusive: true},
	} {
		events, err := c.read(ctx, at, 1, position)
		must(err)
		equal(string(events[0].Body), want)
	}
	for want, position := range map[string]azeventhubs.StartPosition{
		"2": {SequenceNumber: ptr(int64(1))},
		"1": {SequenceNumber: ptr(int64(1)), Inclusive: true},
	} {
		events, err := c.read(ctx, at, 1, position)
		must(err)
		equal(string(events[0].Body), want)
	}
}

func properties(ctx context.Context) {
	at, c := takeSpot(), client{text: world.Plain}
	sent := map[string]any{
		"string": "ünïcödé", "bool": true, "int32": int32(-7), "int64": int64(1 << 40),
		"uint8": uint8(255), "uint64": uint64(1 << 63), "float32": float32(0.5),
		"float64": 0.1, "bytes": []byte{0, 255}, "nil": nil,
		"time": time.UnixMilli(1_700_000_000_123),
	}
	producer := c.producer(at[0])
	defer producer.Close(ctx)
	batch, err := producer.NewEventDataBatch(ctx, &azeventhubs.EventDataBatchOptions{PartitionID: &at[1]})
	must(err)
	event := &azeventhubs.EventData{
		Body: []byte("x"), Properties: sent, ContentType: ptr("text/plain"),
		CorrelationID: "correlation", MessageID: ptr("message"),
	}
	must(batch.AddEventData(event, nil))
	must(producer.SendEventDataBatch(ctx, batch, nil))
	events, err := c.read(ctx, at, 1, earliest)
	must(err)
	equal(events[0].Properties, sent)
	equal(*events[0].MessageID, "message")
	equal(events[0].CorrelationID, "correlation")
	equal(*events[0].ContentType, "text/plain")
}

func failsWith(err error, code azeventhubs.ErrorCode, text string) {
	var found *azeventhubs.Error
	check(errors.As(err, &found) && found.Code == code, "wanted %q, got %v", code, err)
	check(strings.Contains(err.Error(), text), "%q is not in %v", text, err)
}

func ownership(ctx context.Context) {
	at, c := takeSpot(), client{text: world.Plain}
	where := azeventhubs.EventDataBatchOptions{PartitionID: &at[1]}
	must(c.send(ctx, at[0], where, "one"))
	consumer := c.consumer(at[0], azeventhubs.DefaultConsumerGroup)
	defer consumer.Close(ctx)
	open := func(level int64) *azeventhubs.PartitionClient {
		options := &azeventhubs.PartitionClientOptions{OwnerLevel: &level, StartPosition: earliest}
		partition, err := consumer.NewPartitionClient(at[1], options)
		must(err)
		return partition
	}
	low, high, lower := open(1), open(2), open(0)
	_, err := low.ReceiveEvents(ctx, 1, nil)
	must(err)
	_, err = high.ReceiveEvents(ctx, 1, nil)
	must(err)
	_, err = low.ReceiveEvents(ctx, 1, nil)
	failsWith(err, azeventhubs.ErrorCodeOwnershipLost, "with higher epoch of '2'")
	_, err = lower.ReceiveEvents(ctx, 1, nil)
	// The SDK names ownership only for a link that it had; a refused one shows the condition.
	failsWith(err, azeventhubs.ErrorCodeConnectionLost, "amqp:link:stolen")
	check(strings.Contains(err.Error(), "with a higher epoch '2' already exists"), "got %v", err)
	must(c.send(ctx, at[0], where, "two"))
	events, err := high.ReceiveEvents(ctx, 1, nil)
	must(err)
	equal(bodies(events), []string{"two"})
}

func refusals(ctx context.Context) {
	at := takeSpot()
	wrong, listener := client{text: world.Wrong}, client{text: world.Listener}
	plain := client{text: world.Plain}
	whole := azeventhubs.EventDataBatchOptions{}
	failsWith(wrong.send(ctx, at[0], whole, "x"), azeventhubs.ErrorCodeUnauthorizedAccess, "")
	failsWith(listener.send(ctx, at[0], whole, "x"), azeventhubs.ErrorCodeUnauthorizedAccess, "")
	err := plain.send(ctx, "no-such-hub", whole, "x")
	check(err != nil && strings.Contains(err.Error(), "could not be found"), "got %v", err)
	producer := plain.producer("no-such-hub")
	defer producer.Close(ctx)
	_, err = producer.GetEventHubProperties(ctx, nil)
	check(err != nil && strings.Contains(err.Error(), "404"), "got %v", err)
	unknown := azeventhubs.EventDataBatchOptions{PartitionID: ptr("99")}
	err = plain.send(ctx, at[0], unknown, "x")
	check(err != nil && strings.Contains(err.Error(), "argument-out-of-range"), "got %v", err)
	beyond := azeventhubs.StartPosition{Offset: ptr("123456789")}
	_, err = plain.read(ctx, at, 1, beyond)
	check(err != nil && strings.Contains(err.Error(), "argument-error"), "got %v", err)
}

// memoryStore is a CheckpointStore for one process.
type memoryStore struct {
	mutex       sync.Mutex
	ownerships  map[string]azeventhubs.Ownership
	checkpoints map[string]azeventhubs.Checkpoint
	claims      int
}

func (s *memoryStore) ClaimOwnership(_ context.Context, wanted []azeventhubs.Ownership, _ *azeventhubs.ClaimOwnershipOptions) ([]azeventhubs.Ownership, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var won []azeventhubs.Ownership
	for _, each := range wanted {
		known, there := s.ownerships[each.PartitionID]
		if there && (each.ETag == nil || *each.ETag != *known.ETag) {
			continue
		}
		s.claims++
		each.ETag = ptr(azcore.ETag(fmt.Sprint(s.claims)))
		each.LastModifiedTime = time.Now()
		s.ownerships[each.PartitionID] = each
		won = append(won, each)
	}
	return won, nil
}

func (s *memoryStore) ListCheckpoints(context.Context, string, string, string, *azeventhubs.ListCheckpointsOptions) ([]azeventhubs.Checkpoint, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var all []azeventhubs.Checkpoint
	for _, each := range s.checkpoints {
		all = append(all, each)
	}
	return all, nil
}

func (s *memoryStore) ListOwnership(context.Context, string, string, string, *azeventhubs.ListOwnershipOptions) ([]azeventhubs.Ownership, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var all []azeventhubs.Ownership
	for _, each := range s.ownerships {
		all = append(all, each)
	}
	return all, nil
}

func (s *memoryStore) SetCheckpoint(_ context.Context, checkpoint azeventhubs.Checkpoint, _ *azeventhubs.SetCheckpointOptions) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.checkpoints[checkpoint.PartitionID] = checkpoint
	return nil
}

func processor(ctx context.Context) {
	hub, c := takeHub(), client{text: world.Plain}
	wanted := map[string]bool{}
	for _, id := range []string{"0", "1", "2", "3"} {
		must(c.send(ctx, hub, azeventhubs.EventDataBatchOptions{PartitionID: ptr(id)}, id+"a", id+"b"))
		wanted[id+"a"], wanted[id+"b"] = true, true
	}
	store := &memoryStore{ownerships: map[string]azeventhubs.Ownership{}, checkpoints: map[string]azeventhubs.Checkpoint{}}
	equal(process(ctx, c, hub, store, 8), wanted)
	must(c.send(ctx, hub, azeventhubs.EventDataBatchOptions{PartitionID: ptr("2")}, "2c"))
	equal(process(ctx, c, hub, store, 1), map[string]bool{"2c": true})
}

// process runs one processor until that many events were seen and checkpointed.
func process(ctx context.Context, c client, hub string, store *memoryStore, count int) map[string]bool {
	consumer := c.consumer(hub, azeventhubs.DefaultConsumerGroup)
	defer consumer.Close(ctx)
	options := &azeventhubs.ProcessorOptions{
		UpdateInterval:              300 * time.Millisecond,
		PartitionExpirationDuration: 2 * time.Second,
		LoadBalancingStrategy:       azeventhubs.ProcessorStrategyGreedy,
		StartPositions:              azeventhubs.StartPositions{Default: earliest},
	}
	made, err := azeventhubs.NewProcessor(consumer, store, options)
	must(err)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := make(chan string, 100)
	go func() {
		for partition := made.NextPartitionClient(ctx); partition != nil; partition = made.NextPartitionClient(ctx) {
			go func() {
				for {
					events, err := partition.ReceiveEvents(ctx, 1, nil)
					if err != nil {
						return
					}
					for _, event := range events {
						if partition.UpdateCheckpoint(ctx, event, nil) == nil {
							seen <- string(event.Body)
						}
					}
				}
			}()
		}
	}()
	go made.Run(ctx)
	found := map[string]bool{}
	for len(found) < count {
		select {
		case body := <-seen:
			found[body] = true
		case <-ctx.Done():
			panic(fmt.Errorf("saw only %v", found))
		}
	}
	return found
}

func run(work func(context.Context)) (failure any) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	defer func() {
		if reason := recover(); reason != nil {
			failure = fmt.Sprint(reason)
		}
	}()
	work(ctx)
	return nil
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "decode" {
		decodeAll()
		return
	}
	must(json.NewDecoder(os.Stdin).Decode(&world))
	authorities := x509.NewCertPool()
	pem, err := os.ReadFile(world.CAFile)
	must(err)
	check(authorities.AppendCertsFromPEM(pem), "no certificate in %s", world.CAFile)
	// The SDK takes the endpoint's port for a part of the name; 5671 would not stand there.
	trust = &tls.Config{RootCAs: authorities, ServerName: "localhost"}
	cases := map[string]func(context.Context){
		"publishes_and_reads_over_tcp":           goesThrough(client{text: world.Plain}),
		"publishes_and_reads_over_tls":           goesThrough(client{text: world.TLS}),
		"publishes_and_reads_over_websocket":     goesThrough(client{text: world.TLS, socket: true}),
		"keyed_batches_share_a_partition":        keyed,
		"large_events_cross_in_many_frames":      large,
		"positions_are_exclusive_or_inclusive":   positions,
		"properties_of_every_type_come_back":     properties,
		"owner_levels_displace_and_refuse":       ownership,
		"refusals_carry_their_code":              refusals,
		"processor_resumes_from_its_checkpoints": processor,
	}
	ended := map[string]any{}
	var group sync.WaitGroup
	var mutex sync.Mutex
	for name, work := range cases {
		group.Add(1)
		go func() {
			defer group.Done()
			failure := run(work)
			mutex.Lock()
			defer mutex.Unlock()
			ended[name] = failure
		}()
	}
	group.Wait()
	must(json.NewEncoder(os.Stdout).Encode(ended))
}
