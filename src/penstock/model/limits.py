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
PARTITION_COUNT_MAX = 32
PARTITION_COUNT_DEFAULT = 4
PARTITION_COUNT_MIN_EMULATOR = 1  # the emulator's Config.json alone may ask for one
CONSUMER_GROUPS_MAX = 20  # beside $Default
SHARED_READERS_MAX = 5  # non-epoch readers of one partition in one group
RETENTION_HOURS_MIN = 1  # the emulator's own retention; the documents' unit is the day
RETENTION_HOURS_MAX = 7 * 24
RETENTION_HOURS_DEFAULT = 24
AUTHORIZATION_RULES_MAX = 12
THROUGHPUT_UNITS_MIN = 1
THROUGHPUT_UNITS_MAX = 20
UNIT_INGRESS_BYTES_PER_S = 1 * MB
UNIT_INGRESS_EVENTS_PER_S = 1000
UNIT_EGRESS_BYTES_PER_S = 2 * MB
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
SENDER_CREDIT = 1000  # granted to a client that publishes
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

# --- Log ----------------------------------------------------------------------------------------
SEGMENT_BYTES = 64 * MB
BATCH_EVENTS_MAX = 65_536
RECORD_PAYLOAD_BYTES_MAX = 4 * MB  # a publication after it was made canonical, or coalesced singles
TAIL_CACHE_BYTES = 4 * MB  # committed records of one partition kept in memory for live readers
READ_CHUNK_BYTES = 1 * MB

assert PUBLICATION_BYTES_STANDARD <= PUBLICATION_BYTES_DEDICATED < RECORD_PAYLOAD_BYTES_MAX
assert FRAME_BYTES_MIN < FRAME_BYTES_MAX_BEFORE_OPEN < FRAME_BYTES_MAX
assert RECORD_PAYLOAD_BYTES_MAX < SEGMENT_BYTES
assert PUBLICATION_BYTES_DEDICATED <= UNSETTLED_BYTES_PER_CONNECTION_MAX
assert HTTP_BATCH_FACTOR * PUBLICATION_BYTES_DEDICATED < HTTP_HELD_BYTES_MAX
assert IDLE_TIME_OUT_MS > 2 * OPEN_DEADLINE_MS
