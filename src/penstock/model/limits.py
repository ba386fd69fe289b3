"""Limits of Event Hubs, AMQP, HTTP, guard and log; tests/unit/model/test_limits.py checks their
relations.

Sizes are bytes (KB = 1024, MB = 1,048,576), times are milliseconds unless the name says otherwise.
"""

from __future__ import annotations

KB = 1024
MB = 1024 * KB

# --- Event Hubs, the documented limits (protocol.md 10) -----------------------------------------
# To raise the limit of a publication, first raise RECORD_PAYLOAD_BYTES_MAX and the kernels' limits.
PUBLICATION_BYTES_STANDARD = 256 * KB
PUBLICATION_BYTES_DEDICATED = 1 * MB
PUBLICATION_BYTES_CURRENT = 1 * MB  # of a standard namespace with Azure's current limits
PARTITION_COUNT_MIN = 2
PARTITION_COUNT_MIN_CURRENT = 1
PARTITION_COUNT_MAX = 32  # without a quota grant
PARTITION_COUNT_GRANTED_MAX = 1024  # what a dedicated cluster allows (protocol.md 10.1)
PARTITION_COUNT_DEFAULT = 4
CONSUMER_GROUPS_MAX = 20  # beside $Default
SHARED_READERS_MAX = 5  # non-epoch readers of one partition in one group
RETENTION_HOURS_MIN = 1  # the emulator's own retention; the documents' unit is the day
RETENTION_HOURS_MAX = 7 * 24
RETENTION_HOURS_DEFAULT = 24
AUTHORIZATION_RULES_MAX = 12
THROUGHPUT_UNITS_MIN = 1
THROUGHPUT_UNITS_MAX = 20  # self-service; above it a quota grant is needed (model.quotas)
THROUGHPUT_UNITS_GRANTED_MAX = 10_000
UNIT_INGRESS_BYTES_PER_S = 1 * MB
UNIT_INGRESS_EVENTS_PER_S = 1000
UNIT_BURST_MS = 250  # what units allow in this time may come at once
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
SAS_KEY_SET_MIN = 16  # of a key that a client of the management API chooses
SAS_TOKEN_BYTES_MAX = 8 * KB  # a JWT is larger than a SAS token; no valid token exceeds this
HOST_NAME_MAX = 253
HOSTS_PER_NAMESPACE_MAX = 64
FILTER_EXPRESSION_MAX = 512
PRODUCERS_PER_PARTITION_MAX = 10_000  # idempotent producers remembered; the oldest is forgotten

# --- AMQP (protocol.md 1, 13; docs/explanation/security.md) --------------------------------------
FRAME_BYTES_MIN = 512  # AMQP 2.7.1
FRAME_BYTES_MAX = 64 * KB  # what Azure announces
FRAME_BYTES_MAX_BEFORE_OPEN = 8 * KB  # SASL frames and open, before authentication
CHANNEL_MAX = 4999
HANDLE_MAX = 255
SESSIONS_PER_CONNECTION_MAX = 512
LINKS_PER_CONNECTION_MAX = 1024
INCOMING_WINDOW = 5000
OUTGOING_WINDOW = 65536
IDLE_TIME_OUT_MS = 120_000
SENDER_CREDIT = 5000  # for a client that publishes; fewer would bound pipelined singles
NODE_CREDIT = 100  # granted on $cbs and $management
NODE_MESSAGE_BYTES_MAX = 64 * KB
LINK_NAME_MAX = 1024
UNSETTLED_BYTES_PER_CONNECTION_MAX = 16 * MB  # read is paused above it until the disk catches up
UNSETTLED_BYTES_MAX = 256 * MB  # the same over all connections
UNFINISHED_BYTES_MAX = 256 * MB  # deliveries that lack frames, over all connections
DELIVERY_DEADLINE_MS = 60_000  # between two frames of one delivery
OUTBOUND_BUFFER_BYTES = 512 * KB  # delivery pauses above it until the socket drains
GRANTS_PER_CONNECTION_MAX = 1024

HEADER_DEADLINE_MS = 5_000
OPEN_DEADLINE_MS = 10_000
TLS_DEADLINE_S = 10
TLS_HANDSHAKE_US = 1_500  # an estimate: a handshake happens in OpenSSL and is not measured
TOKEN_DEADLINE_MS = 30_000  # some valid token must have been put by then
LINKLESS_FIRST_MS = 60_000  # connection that never made a link
LINKLESS_LATER_MS = 300_000  # connection whose links are all closed
CONNECTIONS_PER_NAMESPACE_MAX = 5_000

# --- Unauthenticated peers, and peers that only make work (docs/explanation/security.md) ---------
CONNECTIONS_PER_ADDRESS_MAX = 4_000  # a fleet behind one address translator
UNAUTHENTICATED_PER_ADDRESS_MAX = 2_000  # a fleet that reconnects at once; above it the oldest ends
UNAUTHENTICATED_MAX = 3_000  # of all addresses
UNAUTHENTICATED_BYTES_MAX = 32 * KB  # of one connection; a client needs 10 KB until its token
UNAUTHENTICATED_LINKS_MAX = 32  # attaches of one connection
FAILED_TOKENS_PER_CONNECTION_MAX = 64
# A link outlives its token for a while: older clients renew a token only after its expiry.
EXPIRY_GRACE_S = 30
EXPIRY_GRACE_S_MAX = 600
ADDRESSES_REMEMBERED_MAX = 10_000
# Penalties of an address, in milliseconds that time pays off. Up to the free amount nothing
# happens (200 failed connections at once, 20 a second permanently); then its next ones are held.
FAILED_CONNECTION_MS = 50  # ended without a token
MISBEHAVED_CONNECTION_MS = 400  # exceeded its work budget, or broke the protocol
PENALTIES_FREE_MS = 10_000
HOLD_MS_MAX = 2_000
HELD_PER_ADDRESS_MAX = 100

# Brute force (protocol.md 2.3): responses to invalid tokens are delayed, by policy and address.
BACKOFF_FREE_FAILURES = 3  # a mistyped key
BACKOFF_FIRST_MS = 50
BACKOFF_MS_MAX = 4_000
BACKOFF_FORGET_MS = 10_000  # one failure is forgotten
BACKOFF_ENTRIES_MAX = 10_000
BACKOFF_WAITING_MAX = 4_096  # answers that are delayed, of all connections

# Work, in microseconds of measured processor time.
WORK_BURST_US = 100_000  # of an authenticated connection, beside what publishing and reading cost
WORK_REFILL_PERCENT = 5  # of the processor, for one authenticated connection
WORK_DEBT_US_MAX = 5_000_000  # beyond its budget; then it is dropped
WORK_UNAUTHENTICATED_US_MAX = 250_000  # of one connection; an honest client needs 2,000 to 10,000
WORK_QUEUE_PERCENT = 20  # of the processor, for all without or beyond a budget together
WORK_QUEUE_BURST_US = 20_000  # the longest time that other connections wait for them
WORK_QUEUE_SLICE_US = 2_000
WORK_QUEUE_DEBT_US_MAX = 100_000  # after one long piece of work, the others wait half a second
WORK_WAITING_MAX = 4_096  # connections that wait for their turn: each holds what was read of it

# --- Operators ----------------------------------------------------------------------------------
SLOW_OPERATION_MS = 1_000  # slower operations are logged
SLOW_OPERATION_MS_MAX = 3_600_000

# --- HTTP ---------------------------------------------------------------------------------------
WEBSOCKET_MESSAGE_BYTES_MAX = 2 * MB  # frames are gathered; one message may hold many
HTTP_HEAD_DEADLINE_S = 10
HTTP_UNAUTHENTICATED_BODY_DEADLINE_S = 30  # of a request without a verified token
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
HTTP_REFUSALS_MAX = 64  # of an unauthenticated connection, then it ends
WEBSOCKET_FRAGMENTS_MAX = 4_096  # of one message: an empty one costs memory too

# --- Leases and checkpoints (docs/reference/checkpoints.md) --------------------------------------
CHECKPOINT_TEXT_MAX = 512  # of an owner's id, an etag, an offset
CHECKPOINT_BODY_BYTES_MAX = 1 * MB
CHECKPOINT_RECORDS_MAX = PARTITION_COUNT_GRANTED_MAX  # of one request
CHECKPOINT_HELD_BYTES_MAX = 32 * MB  # bodies that are being read or wait for the disk
CHECKPOINT_WAITING_MAX = 4_096  # requests that wait for the disk

# --- Management API -----------------------------------------------------------------------------
MANAGEMENT_BODY_BYTES_MAX = 1 * MB
MANAGEMENT_BODY_DEPTH_MAX = 32
MANAGEMENT_BODY_DEADLINE_S = 30
MANAGEMENT_REQUESTS_PER_S = 50  # of all clients with a token, sustained
MANAGEMENT_REQUESTS_BURST = 500

# --- Log ----------------------------------------------------------------------------------------
SEGMENT_BYTES = 64 * MB
BATCH_EVENTS_MAX = 65_536
RECORD_PAYLOAD_BYTES_MAX = 4 * MB  # a publication in canonical form, or coalesced single events

# --- Kernels and client -------------------------------------------------------------------------
# Kernels import nothing of Penstock and have these numbers, and those of the log, as constants of
# their own; tests/unit/model/test_limits.py compares them.
KERNEL_COALESCED_BYTES = 1 * MB  # split_singles closes a publication once it has this size
KERNEL_EVENT_BYTES_MAX = 64 * MB  # of one event that a producer appends to a batch
CLIENT_MESSAGE_BYTES_MAX = 1 * MB  # where the service announces no limit (protocol.md 4.2)

# --- Reading ------------------------------------------------------------------------------------
TAIL_CACHE_BYTES = 4 * MB  # committed records of one partition kept in memory for live readers
TAIL_CACHE_AGE_MS = 10_000  # older ones are read from the disk: a quiet partition holds nothing
READ_CHUNK_BYTES = 1 * MB
