"""Every bound in one file, named after what it bounds; relations are asserted at the end.

Sizes are bytes (KB = 1024, MB = 1 048 576), times are milliseconds unless the name says otherwise.
"""

from __future__ import annotations

KB = 1024
MB = 1024 * KB

# --- Event Hubs, the documents' own limits (design.md 6, protocol.md 10) ------------------------
PUBLICATION_BYTES_STANDARD = 256 * KB
PUBLICATION_BYTES_DEDICATED = 1 * MB
PARTITION_COUNT_MIN = 2
PARTITION_COUNT_MAX = 32  # without an operator's grant
PARTITION_COUNT_GRANTED_MAX = 1024  # what a dedicated cluster allows (protocol.md 10.1)
PARTITION_COUNT_DEFAULT = 4
PARTITION_COUNT_MIN_EMULATOR = 1  # the emulator's Config.json alone may ask for one
CONSUMER_GROUPS_MAX = 20  # beside $Default
SHARED_READERS_MAX = 5  # non-epoch readers of one partition in one group
RETENTION_HOURS_MIN = 1  # the emulator's own retention; the documents' unit is the day
RETENTION_HOURS_MAX = 7 * 24
RETENTION_HOURS_DEFAULT = 24
AUTHORIZATION_RULES_MAX = 12
THROUGHPUT_UNITS_MIN = 1
THROUGHPUT_UNITS_MAX = 20  # self-service; beyond it an operator's grant (model.units)
THROUGHPUT_UNITS_GRANTED_MAX = 10_000
UNIT_INGRESS_BYTES_PER_S = 1 * MB
UNIT_INGRESS_EVENTS_PER_S = 1000
UNIT_EGRESS_BYTES_PER_S = 2 * MB
USAGE_STEP_BYTES = 64 * KB  # an event is metered once for each step of its size
GRANT_NOTE_MAX = 1024
AUDIT_WHO_MAX = 256
AUDIT_WHAT_MAX = 64
AUDIT_DETAIL_MAX = 4096
MANAGEMENT_CALLS_PER_S = 50  # GetRuntimeInformation, per namespace

NAMESPACE_NAME_MIN = 6
NAMESPACE_NAME_MAX = 50
HUB_NAME_MAX = 256
GROUP_NAME_MAX = 50
RULE_NAME_MAX = 50
PUBLISHER_NAME_MAX = 256
REVOKED_PUBLISHERS_MAX = 10_000  # of one hub; what is listed in one answer, and kept in memory
PARTITION_KEY_MAX = 128  # characters
RECEIVER_NAME_MAX = 64
USER_METADATA_MAX = 1024
METADATA_BYTES_MAX = 64 * KB  # of one entity, as JSON
SAS_KEY_MAX = 256
SAS_TOKEN_BYTES_MAX = 8 * KB  # a JWT is larger than a SAS; nothing honest exceeds this
HOST_NAME_MAX = 253
HOSTS_PER_NAMESPACE_MAX = 64
FILTER_EXPRESSION_MAX = 512
PRODUCERS_PER_PARTITION_MAX = 10_000  # idempotent producers remembered; the oldest is forgotten

# --- AMQP (protocol.md 13, expectations.md H) ---------------------------------------------------
FRAME_BYTES_MIN = 512  # AMQP 2.7.1
FRAME_BYTES_MAX = 64 * KB  # what the real service announces
FRAME_BYTES_MAX_BEFORE_OPEN = 8 * KB  # SASL frames and open, before anybody is known
CHANNEL_MAX = 4999
HANDLE_MAX = 255
SESSIONS_PER_CONNECTION_MAX = 512
LINKS_PER_CONNECTION_MAX = 1024
INCOMING_WINDOW = 5000
OUTGOING_WINDOW = 65536
IDLE_TIME_OUT_MS = 120_000
VALUE_DEPTH_MAX = 32
VALUE_COUNT_MAX = 65_536
MESSAGE_ELEMENTS_MAX = 100_000
SENDER_CREDIT = 5000  # for a client that publishes; fewer would bound pipelined singles
NODE_CREDIT = 100  # granted on $cbs and $management
NODE_MESSAGE_BYTES_MAX = 64 * KB
LINK_NAME_MAX = 1024
CONTAINER_ID_MAX = 1024
UNSETTLED_BYTES_PER_CONNECTION_MAX = 16 * MB  # read is paused above it until the disk catches up
UNSETTLED_BYTES_MAX = 256 * MB  # the same over all connections
OUTBOUND_BUFFER_BYTES = 512 * KB  # delivery pauses above it until the socket drains
GRANTS_PER_CONNECTION_MAX = 1024

HEADER_DEADLINE_MS = 5_000
OPEN_DEADLINE_MS = 10_000
TLS_DEADLINE_S = 10
TOKEN_DEADLINE_MS = 30_000  # some valid token must have been put by then
LINKLESS_FIRST_MS = 60_000  # connection that never made a link
LINKLESS_LATER_MS = 300_000  # connection whose links are all closed
CONNECTIONS_PER_NAMESPACE_MAX = 5_000

# --- Peers that nobody knows, or that only make work (docs/security.md) -------------------------
CONNECTIONS_PER_ADDRESS_MAX = 4_000  # a fleet behind one address translator
UNAUTHENTICATED_PER_ADDRESS_MAX = 1_000  # above it whoever is older than this makes room:
UNAUTHENTICATED_PATIENCE_MS = 5_000
UNAUTHENTICATED_YOUNG_PER_ADDRESS_MAX = 2_500  # a fleet that comes back all at once
UNAUTHENTICATED_MAX = 3_000  # of all addresses
UNAUTHENTICATED_BYTES_MAX = 256 * KB  # of one connection; an honest one needs 10 KB until its token
UNAUTHENTICATED_LINKS_MAX = 32  # attaches of one connection
FAILED_TOKENS_PER_CONNECTION_MAX = 64
ADDRESSES_REMEMBERED_MAX = 10_000
# A connection that ended without a token costs its address so much time. Up to the allowance
# nothing happens (200 of them at once, 20 a second for ever); then its next ones wait to be read.
FAILED_CONNECTION_MS = 50
MISBEHAVED_CONNECTION_MS = 400  # one that had to rest, or broke the protocol
FAILED_CONNECTIONS_ALLOWANCE_MS = 10_000
FAILED_CONNECTIONS_HOLD_MS_MAX = 1_000
HELD_CONNECTION_MS = 50  # so much longer for each that waits already
HELD_CONNECTIONS_MS_MAX = 1_000  # an honest one behind the same address waits no longer
HELD_PER_ADDRESS_MAX = 1_000

# Brute force (design.md 7): answers to tokens that fail are slowed, by policy name and address.
BACKOFF_FREE_FAILURES = 3  # a mistyped key
BACKOFF_FIRST_MS = 50
BACKOFF_MS_MAX = 4_000
BACKOFF_FORGET_MS = 10_000  # one failure is forgotten
BACKOFF_ENTRIES_MAX = 10_000
BACKOFF_WAITING_MAX = 4_096  # answers that wait, of all connections

# Work that nothing comes of. One unit is about one frame that is no transfer; what was published
# or delivered pays for the frames that go with it.
EFFORT_UNITS_PER_S = 1_000  # of one connection, without having to wait
EFFORT_UNITS_STRANGER = 128  # at once; an honest client needs 60 until its token
EFFORT_UNITS_MAX = 1_200  # at once; a client that opens 32 partitions needs 1 000
EFFORT_UNITS_EARNED_MAX = 4_096  # above that: frames for events that are on their way
EFFORT_UNITS_ALL_PER_S = 2_000  # of all that have to wait together: a twentieth of a core
EFFORT_REST_MS_MAX = 10_000
EFFORT_UNITS_BLAMED = 64  # at once, from an address whose connections are held back
EFFORT_RESTLESS_MS_MAX = 30_000  # of resting again and again, nothing coming of it: then it ends
EFFORT_RESTLESS_BLAMED_MS_MAX = 2_000  # the same, from an address whose connections are held back
RESTING_MAX = 128  # at once, of all connections: each holds what was read of it last

# --- Operators ----------------------------------------------------------------------------------
SLOW_OPERATION_MS = 1_000  # what takes longer stands in the log
SLOW_OPERATION_MS_MAX = 3_600_000

# --- HTTP ---------------------------------------------------------------------------------------
WEBSOCKET_MESSAGE_BYTES_MAX = 2 * MB  # frames are gathered; one message may hold many
HTTP_HEAD_DEADLINE_S = 10
HTTP_HEADERS_MAX = 100
HTTP_HEAD_BYTES_MAX = 64 * KB  # request line and headers together
HTTP_PATH_BYTES_MAX = 8 * KB  # a hub and a publisher at their longest, every character escaped
HTTP_CONNECTIONS_MAX = 5_000  # of one listener
HTTP_REQUEST_DEADLINE_S = 60  # body and disk together, unless the query's `timeout` says otherwise
HTTP_REQUEST_DEADLINE_S_MAX = 300
HTTP_HELD_BYTES_MAX = 128 * MB  # bodies that are being read or wait for the disk, of everybody
HTTP_BATCH_FACTOR = 2  # a batch's JSON may be so many times its publication: escapes, base64
HTTP_DISCARDED_BYTES_MAX = 1 * MB  # of a refused body, so that the client comes to read why
HTTP_DISCARD_DEADLINE_S = 2
HTTP_PIPELINED_MAX = 8  # requests behind the one that is being answered
HTTP_WRITE_DEADLINE_S = 60  # a peer that takes nothing of its answer
HTTP_REFUSALS_FREE = 4  # of a connection that nobody knows; the next ones wait
HTTP_REFUSAL_MS = 250
HTTP_REFUSALS_MAX = 64  # then the connection ends
WEBSOCKET_FRAGMENTS_MAX = 4_096  # of one message: an empty one costs memory too

# --- Leases and checkpoints (docs/checkpoints.md) ------------------------------------------------
CHECKPOINT_TEXT_MAX = 512  # of an owner's id, an etag, an offset
CHECKPOINT_BODY_BYTES_MAX = 1 * MB
CHECKPOINT_RECORDS_MAX = PARTITION_COUNT_GRANTED_MAX  # of one request
CHECKPOINT_HELD_BYTES_MAX = 32 * MB  # bodies that are being read or wait for the disk
CHECKPOINT_WAITING_MAX = 4_096  # requests that wait for the disk

# --- Management API -----------------------------------------------------------------------------
MANAGEMENT_BODY_BYTES_MAX = 1 * MB
MANAGEMENT_BODY_DEPTH_MAX = 32
MANAGEMENT_BODY_DEADLINE_S = 30
MANAGEMENT_REQUESTS_PER_S = 50  # of everybody who has a token, sustained
MANAGEMENT_REQUESTS_BURST = 500
ATOM_BODY_BYTES_MAX = 64 * KB  # one entry; userMetadata is its largest part
ATOM_ELEMENTS_MAX = 256
ATOM_DEPTH_MAX = 16

# --- Log ----------------------------------------------------------------------------------------
SEGMENT_BYTES = 64 * MB
BATCH_EVENTS_MAX = 65_536
RECORD_PAYLOAD_BYTES_MAX = 4 * MB  # a publication after it was made canonical, or coalesced singles
TAIL_CACHE_BYTES = 4 * MB  # committed records of one partition kept in memory for live readers
READ_CHUNK_BYTES = 1 * MB

assert PUBLICATION_BYTES_STANDARD <= PUBLICATION_BYTES_DEDICATED < RECORD_PAYLOAD_BYTES_MAX
assert FRAME_BYTES_MIN < FRAME_BYTES_MAX_BEFORE_OPEN < FRAME_BYTES_MAX
assert RECORD_PAYLOAD_BYTES_MAX < SEGMENT_BYTES
assert PARTITION_COUNT_MAX < PARTITION_COUNT_GRANTED_MAX
assert THROUGHPUT_UNITS_MAX < THROUGHPUT_UNITS_GRANTED_MAX
assert PUBLICATION_BYTES_DEDICATED <= UNSETTLED_BYTES_PER_CONNECTION_MAX
assert HTTP_BATCH_FACTOR * PUBLICATION_BYTES_DEDICATED < HTTP_HELD_BYTES_MAX
assert IDLE_TIME_OUT_MS > 2 * OPEN_DEADLINE_MS
assert BACKOFF_MS_MAX < OPEN_DEADLINE_MS  # SASL's outcome still comes in time
assert UNAUTHENTICATED_PER_ADDRESS_MAX < UNAUTHENTICATED_YOUNG_PER_ADDRESS_MAX
assert UNAUTHENTICATED_YOUNG_PER_ADDRESS_MAX <= UNAUTHENTICATED_MAX < CONNECTIONS_PER_ADDRESS_MAX
assert CONNECTIONS_PER_ADDRESS_MAX < CONNECTIONS_PER_NAMESPACE_MAX
assert 2 * EFFORT_REST_MS_MAX < IDLE_TIME_OUT_MS
