"""Scope confusion (protocol.md 2.5): a table of who may do what where; no row may escape."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest

from penstock.auth.sas import Authority, verify_sas_token
from penstock.model.entities import Right
from penstock.model.errors import AuthFailed

NOW = 1_700_000_000
LATER = NOW + 3600
HOST = "contoso.servicebus.windows.net"
HUB1 = f"sb://{HOST}/hub1"
L, S, M = Right.LISTEN, Right.SEND, Right.MANAGE

YES = "allowed"
NO = "granted, not here"  # the token is good for its audience, the path or right is not its own
SIG = "InvalidSignature"
AUD = "InvalidAudience"
EXP = "ExpiredToken"
BAD = "MalformedToken"

# label, sr as the client signs it (before escaping), policy, key, audience, path, right, outcome
Row = tuple[str, str, str, str, str, str, Right, str]
ROOT = ("Root", "root-1")

_KEYS = {
    "Root": "root-1",
    "Sender": "send-1",
    "Listener": "listen-1",
    "HubSend": "hs-1",
    "HubAll": "ha-1",
    "PlantAll": "pa-1",
    "LineAll": "la-1",
}
_SHORT = {"CG": "ConsumerGroups", "cg": "consumergroups", "P": "Partitions"}
_SHORT |= {"Pub": "Publishers", "pub": "publishers"}
_RIGHTS = {"L": L, "S": S, "M": M, "LS": L | S, "LSM": L | S | M}
_OUTCOMES = {"YES": YES, "NO": NO, "SIG": SIG, "AUD": AUD, "EXP": EXP, "BAD": BAD}


def _rows(text: str) -> list[Row]:
    """`label | sr | policy [key] | audience | path | right outcome`

    `ns` is contoso's host, `=` repeats: the sr as audience, the audience's path as path.
    """
    rows: list[Row] = []
    for line in text.strip().splitlines():
        label, sr, credential, audience, path, last = line.split(" | ")
        policy, _, key = credential.partition(" ")
        right, outcome = last.split()
        sr = _expanded(sr)
        audience = sr if audience == "=" else _expanded(audience)
        path = audience.removeprefix(f"sb://{HOST}/") if path == "=" else _expanded(path)
        row = (label, sr, policy, key or _KEYS[policy], audience, path)
        rows.append((*row, _RIGHTS[right], _OUTCOMES[outcome]))
    return rows


def _expanded(text: str) -> str:
    first, *rest = text.split("/")
    first = f"sb://{HOST}" if first == "ns" else first
    return "/".join([first, *(_SHORT.get(segment, segment) for segment in rest)])


def _spellings() -> list[Row]:
    """One resource in every honest spelling, as sr and as audience: always the same hub."""
    texts = [
        *(f"{scheme}://{HOST}/hub1" for scheme in ("sb", "amqp", "amqps", "http", "https")),
        *(f"{scheme}://{HOST}/hub1" for scheme in ("ws", "wss", "SB", "AmqpS", "HTTPS")),
        *(f"sb://{HOST}:{port}/hub1" for port in (5671, 5672, 443, 1, 65535)),
        *(f"sb://{host}/hub1" for host in ("localhost", "LOCALHOST", "127.0.0.1", "[::1]")),
        *(f"sb://{host}/hub1" for host in ("localhost:35671", "[::1]:5671", "contoso")),
        *(f"sb://{host}/hub1" for host in (HOST.upper(), "Contoso", "CONTOSO:5671")),
        *(f"sb://{HOST}/{path}" for path in ("hub1/", "HUB1", "Hub1/", "%68ub1", "h%75b1")),
        *(f"{host}/hub1" for host in (HOST, "contoso", "localhost:5672", "[::1]:5672")),
        *(f"//{HOST}/hub1", f"//{HOST}/hub1/", "//contoso/HUB1"),
    ]
    rows: list[Row] = []
    for text in texts:
        rows.append((f"sr {text}", text, *ROOT, HUB1, "hub1", S, YES))
        rows.append((f"audience {text}", HUB1, *ROOT, text, "hub1", S, YES))
        rows.append((f"sr {text} elsewhere", text, *ROOT, f"sb://{HOST}/hub10", "hub10", S, AUD))
    return rows


# What lies in a token's resource, and what in the audience it was put for.
SAME = _rows("""
below the hub: group | ns/hub1 | Root | ns/hub1/CG/$Default | hub1 | L NO
group's audience, its part | ns/hub1 | Root | ns/hub1/cg/$default | hub1/CG/$Default/P/0 | L YES
group's audience, other group | ns/hub1 | Root | ns/hub1/cg/$default | hub1/CG/other/P/0 | L NO
hub's audience, partition | ns/hub1 | Root | = | hub1/P/3 | S YES
hub's audience, publisher | ns/hub1 | Root | = | hub1/Pub/dev | S YES
hub's audience, management | ns/hub1 | Root | = | hub1/$management | M YES
management's audience | ns/hub1 | Root | ns/hub1/$management | = | L YES
whole namespace, one hub | ns/ | Root | ns/hub1 | = | M YES
whole namespace, no slash | ns | Root | ns/hub1 | = | M YES
namespace's bare name | contoso | Root | ns/hub1 | = | M YES
whole namespace put for all | ns/ | Root | ns | hub10 | S YES
hub token put for all | ns/hub1 | Root | ns/ | hub1 | S AUD
audience without host | ns/hub1 | Root | /hub1 | hub1 | S YES
hub's audience, other hub | ns | Root | ns/hub1 | hub10 | S NO
partition token, its partition | ns/hub1/P/1 | Root | = | = | S YES
partition token, partition 10 | ns/hub1/P/1 | Root | ns/hub1/P/10 | = | S AUD
partition token, whole hub | ns/hub1/P/1 | Root | ns/hub1 | = | S AUD
hub with slashes | ns/a/b/c | Root | = | = | S YES
hub with slashes, prefix | ns/a/b | Root | ns/a/b/c | = | S YES
hub that does not exist | ns/none | Root | = | = | S YES
""")

# Tokens for the URI of an HTTPS publish request, entity/messages (protocol.md 7.1).
PUBLISH_URI = _rows("""
hub's publish URI | ns/hub1/messages | Root | ns/hub1 | = | S YES
hub's publish URI in capitals | ns/hub1/Messages/ | Root | ns/hub1 | = | S YES
hub's publish URI as audience | ns/hub1/messages | Root | = | hub1 | S YES
hub token, publish URI as audience | ns/hub1 | Root | ns/hub1/messages | hub1 | S YES
hub's publish URI listens | ns/hub1/messages | Root | ns/hub1 | = | L NO
hub's publish URI manages | ns/hub1/messages | Root | ns/hub1 | = | M NO
hub's publish URI, group | ns/hub1/messages | Root | ns/hub1/CG/$Default | = | L AUD
hub's publish URI, partition | ns/hub1/messages | Root | ns/hub1/P/0 | = | S AUD
hub's publish URI, publisher | ns/hub1/messages | Root | ns/hub1/Pub/a | = | S AUD
hub's publish URI, other hub | ns/hub1/messages | Root | ns/hub10 | = | S AUD
hub's publish URI, all | ns/hub1/messages | Root | ns | hub1 | S AUD
hub's publish URI, rule of the hub | ns/hub1/messages | HubSend | ns/hub1 | = | S YES
hub's publish URI, only listens | ns/hub1/messages | Listener | ns/hub1 | = | S NO
partition's publish URI | ns/hub1/P/0/messages | Root | ns/hub1/P/0 | = | S YES
partition's publish URI, other | ns/hub1/P/0/messages | Root | ns/hub1/P/1 | = | S AUD
partition's publish URI, hub | ns/hub1/P/0/messages | Root | ns/hub1 | = | S AUD
publisher's publish URI | ns/hub1/Pub/a/messages | Root | ns/hub1/Pub/a | = | S YES
publisher's publish URI, singular | ns/hub1/publisher/a/messages | Root | ns/hub1/pub/a | = | S YES
publisher in the singular | ns/hub1/publisher/a | Root | ns/hub1/pub/a | = | S YES
publisher in the singular, other | ns/hub1/publisher/a | Root | ns/hub1/pub/b | = | S AUD
publisher's publish URI, other | ns/hub1/Pub/a/messages | Root | ns/hub1/Pub/b | = | S AUD
publisher's publish URI, below | ns/hub1/Pub/a/messages | Root | ns/hub1/Pub/a/b | = | S AUD
publisher's publish URI, hub | ns/hub1/Pub/a/messages | Root | ns/hub1 | = | S AUD
publisher's publish URI listens | ns/hub1/Pub/a/messages | Root | ns/hub1/Pub/a | = | L NO
publisher called messages | ns/hub1/Pub/messages | Root | ns/hub1/Pub/messages | = | S YES
publisher called messages, another | ns/hub1/Pub/messages | Root | ns/hub1/Pub/a | = | S AUD
publisher called messages, hub | ns/hub1/Pub/messages | Root | ns/hub1 | = | S AUD
called messages, its URI | ns/hub1/pub/messages/messages | Root | ns/hub1/pub/messages | = | S YES
no such URI | ns/hub1/messages/messages | Root | ns/hub1 | = | S AUD
no such URI below a partition | ns/hub1/P/messages | Root | ns/hub1 | = | S AUD
whole namespace's messages | ns/messages | Root | ns/hub1 | = | S AUD
""")

NOT_A_PREFIX: list[Row] = [
    (f"{sr} for {aud}", f"sb://{HOST}/{sr}", *ROOT, f"sb://{HOST}/{aud}", aud, S, AUD)
    for sr, aud in [
        ("hub1", "hub10"),
        ("hub10", "hub1"),
        ("hub", "hub1"),
        ("h", "hub1"),
        ("hub1", "Telemetry"),
        ("hub1/ConsumerGroups", "hub10/ConsumerGroups"),
        ("hub1/ConsumerGroups/a", "hub1/ConsumerGroups/ab"),
        ("hub1/ConsumerGroups/a", "hub1/ConsumerGroups/b"),
        ("hub1/ConsumerGroups/a", "hub1/Partitions/0"),
        ("hub1/ConsumerGroups/a/Partitions/0", "hub1/ConsumerGroups/a/Partitions/01"),
        ("hub1/ConsumerGroups/a/Partitions/0", "hub1/ConsumerGroups/a"),
        ("plant/lin", "plant/line"),
        ("plant/line", "plant"),
        ("a/b/c", "a/b"),
        ("hub1/publishers/dev", "hub1"),
        ("hub1/publishers/dev", "hub1/publishers"),
        ("hub1/publishers/dev", "hub1/publishers/dev2"),
        ("hub1/publishers/dev", "hub1/publishers/de"),
        ("hub1/publishers/dev", "hub1/publishers/dev/x"),
        ("hub1/publishers/dev", "hub1/publishers/dev/publishers/other"),
        ("hub1/publishers/dev", "hub10/publishers/dev"),
        ("hub1/publishers/dev", "hub1/Partitions/0"),
        ("hub1/publishers/dev", "hub1/$management"),
        ("hub1/publishers/a/b", "hub1/publishers/a"),
        ("hub1/publishers/a%2Fb", "hub1/publishers/a"),
        ("hub1/publishers/a", "hub1/publishers/a%2Fb"),
        ("hub1/publishers/K", "hub1/publishers/\u212a"),  # KELVIN SIGN lower-cases to k
        ("hub1/publishers/ss", "hub1/publishers/ß"),
        ("hub1/publishers/dev", "hub1/publishers/d%E9v".replace("%E9", "é")),
    ]
]

# One publisher's token is that publisher's alone, and sends only.
PUBLISHER = _rows("""
publisher sends as itself | ns/hub1/pub/dev | Sender | = | hub1/Pub/dev | S YES
publisher, any case | ns/hub1/pub/dev | Sender | CONTOSO/HUB1/PUBLISHERS/DEV | hub1/Pub/DEV | S YES
publisher by the root key | ns/hub1/pub/dev | Root | = | = | S YES
publisher does not listen | ns/hub1/pub/dev | Root | = | = | L NO
publisher does not manage | ns/hub1/pub/dev | Root | = | = | M NO
publisher by a listen rule | ns/hub1/pub/dev | Listener | = | = | S NO
publisher as another | ns/hub1/pub/dev | Root | = | hub1/pub/dev2 | S NO
publisher as one below | ns/hub1/pub/dev | Root | = | hub1/pub/dev/x | S NO
publisher to the hub | ns/hub1/pub/dev | Root | = | hub1 | S NO
publisher to a partition | ns/hub1/pub/dev | Root | = | hub1/P/0 | S NO
publisher in another hub | ns/hub1/pub/dev | Root | = | hub10/pub/dev | S NO
hub token put for a publisher | ns/hub1 | Root | ns/hub1/pub/dev | = | S YES
hub token put for another | ns/hub1 | Root | ns/hub1/pub/dev | hub1/pub/dev2 | S NO
hub token put for it, to the hub | ns/hub1 | Root | ns/hub1/pub/dev | hub1 | S NO
all publishers | ns/hub1/publishers | Root | ns/hub1/pub/dev | = | S YES
name with a space | ns/hub1/pub/a b | Root | ns/hub1/pub/a%20b | hub1/pub/a b | S YES
name with an escaped space | ns/hub1/pub/a%20b | Root | = | hub1/pub/a b | S YES
name with a slash | ns/hub1/pub/a%2Fb | Root | ns/hub1/pub/a/b | = | S YES
name with a percent sign | ns/hub1/pub/5%2525 | Root | = | hub1/pub/5%25 | S YES
name escaped twice is another | ns/hub1/pub/%2541 | Root | ns/hub1/pub/A | = | S AUD
audience escaped twice is another | ns/hub1/pub/A | Root | ns/hub1/pub/%2541 | hub1/pub/A | S AUD
group called publishers | ns/hub1/CG/publishers | Root | ns/hub1/CG/pub/P/0 | = | L YES
""")

OTHER_HOSTS: list[Row] = [
    (f"sr of host {host!r}", f"sb://{host}/hub1", *ROOT, HUB1, "hub1", S, outcome)
    for host, outcome in [
        ("evil.example", AUD),
        (f"{HOST}.evil.example", AUD),
        (f"evil.{HOST}", AUD),
        ("contoso.evil.example", AUD),
        ("contos", AUD),
        ("contoso1", AUD),
        ("contoso.", AUD),
        (f"{HOST}.", AUD),
        ("servicebus.windows.net", AUD),
        ("0.0.0.0", AUD),
        ("127.0.0.2", AUD),
        ("[::2]", AUD),
        ("[::ffff:127.0.0.1]", AUD),
        ("fabrikam", AUD),
        ("fabrikam.servicebus.windows.net", AUD),
        (f"user@{HOST}", BAD),
        (f"{HOST}@evil.example", BAD),
        (f"{HOST}:5671@evil.example", BAD),
        (f"{HOST}:", BAD),
        (f"{HOST}:abc", BAD),
        (f"{HOST}:123456", BAD),
        (f"{HOST} ", BAD),
        (f"{HOST}\\evil", BAD),
        (f"{HOST}#evil", BAD),
        (f"{HOST}?x", BAD),
        ("[::1", BAD),
        ("::1", BAD),
        ("[::1%25lo]", BAD),
        ("cont\u043eso", BAD),  # CYRILLIC SMALL LETTER O
        ("conto\u017fo", BAD),  # LATIN SMALL LETTER LONG S lower-cases to s
        ("", BAD),
        ("h" * 254, BAD),
    ]
] + [
    (f"audience of host {host!r}", HUB1, *ROOT, f"sb://{host}/hub1", "hub1", S, AUD)
    for host in ("evil.example", "fabrikam", f"{HOST}.", f"user@{HOST}", "", "h" * 254, "::1")
]

MALFORMED: list[Row] = [
    (f"sr path {path!r}", f"sb://{HOST}/{path}", *ROOT, HUB1, "hub1", S, BAD)
    for path in [
        "/hub1",
        "hub1//",
        "hub10//hub1",
        "hub10/../hub1",
        "..",
        "../hub1",
        "hub1/..",
        "./hub1",
        "hub1/.",
        "hub10/%2e%2e/hub1",
        "hub10/%2E./hub1",
        "hub10%2F..%2Fhub1",
        "hub1%00",
        "hub1\0",
        "hub1%0a",
        "hub1%7f",
        "hub1%",
        "hub1%2",
        "hub1%zz",
        "hub1%ff",
        "hub1%c3",
        "hub1%ed%a0%80",
        "\u202ehub1",
    ]
] + [
    ("sr of an unknown scheme", f"ftp://{HOST}/hub1", *ROOT, HUB1, "hub1", S, BAD),
    ("sr of an empty scheme", f"://{HOST}/hub1", *ROOT, HUB1, "hub1", S, BAD),
    ("sr without host", "/hub1", *ROOT, HUB1, "hub1", S, AUD),
    ("sr of three slashes", "sb:///hub1", *ROOT, HUB1, "hub1", S, BAD),
    ("sr is a hub alone", "hub1", *ROOT, HUB1, "hub1", S, AUD),
    *(
        (f"audience path {path!r}", HUB1, *ROOT, f"sb://{HOST}/{path}", "hub1", S, AUD)
        for path in ("hub1/..", "hub1//", "hub10/../hub1", "hub1%00", "hub1%zz", "hub1/%2e%2e")
    ),
    *(
        (f"audience {text!r}", HUB1, *ROOT, text, "hub1", S, AUD)
        for text in ("", "hub1", f"ftp://{HOST}/hub1", "sb://", "\0", "x" * 9000, "\ud800")
    ),
]

# A hub's rule opens that hub; a right that was not given is not there.
LEVELS = _rows("""
hub rule on its hub | ns/hub1 | HubSend | = | = | S YES
hub rule on its partition | ns/hub1 | HubSend | = | hub1/P/0 | S YES
hub rule, other right | ns/hub1 | HubSend | = | = | L NO
hub rule, other hub's key | ns/hub1 | HubSend hs10-1 | = | = | S SIG
hub rule on another hub | ns/hub10 | HubAll | = | = | S SIG
hub rule signs the namespace, used on its hub | ns | HubAll | ns/hub1 | = | M YES
hub rule signs the namespace, used elsewhere | ns | HubAll | ns/hub10 | = | S SIG
hub rule signs the namespace, put for it | ns | HubAll | = | hub1 | S SIG
hub rule signs the namespace, path elsewhere | ns | HubAll | ns/hub1 | hub10 | S NO
plant's rule on plant | ns/plant | PlantAll | = | plant/P/0 | S YES
plant's rule on plant/line | ns/plant | PlantAll | ns/plant/line | = | S SIG
plant's rule put for plant, used on plant/line | ns/plant | PlantAll | = | plant/line | S NO
plant's rule put for plant, used on a part of line | ns/plant | PlantAll | = | plant/line/P/0 | S NO
line's rule on plant/line | ns/plant/line | LineAll | = | plant/line/P/0 | S YES
line's rule on plant | ns/plant | LineAll | = | = | S SIG
hub's namesake listens | ns/hub1 | Shared shared-hub | = | = | L YES
hub's namesake does not send | ns/hub1 | Shared shared-hub | = | = | S NO
namespace's namesake sends | ns/hub1 | Shared shared-ns | = | = | S YES
hub's namesake elsewhere | ns/hub10 | Shared shared-hub | = | = | L SIG
sender sends | ns/hub1 | Sender | = | = | S YES
sender does not listen | ns/hub1 | Sender | = | = | L NO
sender does not manage | ns/hub1 | Sender | = | = | M NO
sender does not do both | ns/hub1 | Sender | = | = | LS NO
listener listens | ns/hub1 | Listener | = | = | L YES
listener does not send | ns/hub1 | Listener | = | = | S NO
root does all | ns/hub1 | Root | = | = | LSM YES
""")

KEYS: list[Row] = [
    (f"{policy} with {key!r}", HUB1, policy, key, HUB1, "hub1", S, outcome)
    for policy, key, outcome in [
        ("Root", "root-1", YES),
        ("Root", "root-2", YES),
        ("ROOT", "root-1", YES),
        ("HubSend", "hs-2", YES),
        ("%52oot", "root-1", YES),
        ("%2552oot", "root-1", YES),
        ("Root", "root-0", SIG),  # the key before the rotation
        ("Root", "root-1 ", SIG),
        ("Root", "Root-1", SIG),
        ("Root", "send-1", SIG),
        ("Root", "0" * 44, SIG),  # what stands in for a missing rule's keys
        ("Nobody", "0" * 44, SIG),
        ("Nobody", "1" * 44, SIG),
        ("Nobody", "root-1", SIG),
        ("Root%20", "root-1", SIG),
        ("%252552oot", "root-1", SIG),
        ("Root%00", "root-1", SIG),
        ("Sender", "root-1", SIG),
        ("Listener", "send-1", SIG),
        ("HubSend", "root-1", SIG),
    ]
]

# Namespaces on one address are told apart by the key.
NAMESPACES = _rows("""
contoso's key by loopback | sb://localhost/hub1 | Root | = | hub1 | S YES
fabrikam's key by loopback | sb://localhost/hub1 | Root froot-1 | = | hub1 | S YES
fabrikam's key on contoso's host | ns/hub1 | Root froot-1 | = | = | S SIG
fabrikam's key, mixed hosts | sb://localhost/hub1 | Root froot-1 | ns/hub1 | = | S SIG
fabrikam's key, hosts exchanged | ns/hub1 | Root froot-1 | sb://localhost/hub1 | hub1 | S SIG
contoso's key on fabrikam's host | sb://fabrikam/hub1 | Root | = | hub1 | S SIG
fabrikam's sr on contoso's audience | sb://fabrikam/hub1 | Root froot-1 | ns/hub1 | = | S AUD
contoso's key on a hub of fabrikam alone | sb://localhost/own | Root | = | own | S YES
""")

TABLE = [
    *_spellings(),
    *SAME,
    *PUBLISH_URI,
    *NOT_A_PREFIX,
    *PUBLISHER,
    *OTHER_HOSTS,
    *MALFORMED,
    *LEVELS,
    *KEYS,
    *NAMESPACES,
]


def _escaped_upper(sr: str) -> str:
    return quote(sr, safe="", errors="surrogatepass")


def _escaped_lower(sr: str) -> str:
    """As Go does it: the escaped text lower-cased as a whole (protocol.md 2.5)."""
    return _escaped_upper(sr).lower()


def _outcome(
    token: str, audience: str, path: str, right: Right, authorities: tuple[Authority, ...]
) -> str:
    try:
        grant = verify_sas_token(token, audience=audience, authorities=authorities, now_s=NOW)
    except AuthFailed as error:
        return str(error).partition(":")[0]
    return YES if grant.allows(tuple(path.split("/")), right) else NO


def test_table_has_the_promised_size() -> None:
    assert len(TABLE) >= 200
    assert len({row[0] for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize("escape", [_escaped_upper, _escaped_lower])
@pytest.mark.parametrize("row", TABLE, ids=[ascii(row[0])[:60] for row in TABLE])
def test_token_reaches_what_it_was_signed_for_and_nothing_else(
    row: Row,
    escape: Callable[[str], str],
    authorities: tuple[Authority, ...],
    make_token: Callable[..., str],
) -> None:
    _label, sr, policy, key, audience, path, right, expected = row
    token = make_token(escape(sr), policy, key, LATER)
    assert _outcome(token, audience, path, right, authorities) == expected


@pytest.mark.parametrize("row", TABLE, ids=[ascii(row[0])[:60] for row in TABLE])
def test_signature_over_another_resource_opens_nothing(
    row: Row, authorities: tuple[Authority, ...], make_token: Callable[..., str]
) -> None:
    """A good signature, taken from one token, is of no use under another `sr` or `se`."""
    _label, sr, policy, key, audience, path, right, _expected = row
    stolen = make_token(_escaped_upper("sb://contoso/unrelated"), policy, key, LATER)
    raw = stolen.replace(_escaped_upper("sb://contoso/unrelated"), _escaped_upper(sr))
    assert _outcome(raw, audience, path, right, authorities) in (SIG, AUD, BAD)
    longer = make_token(_escaped_upper(sr), policy, key, LATER).replace(str(LATER), str(LATER + 1))
    assert _outcome(longer, audience, path, right, authorities) in (SIG, AUD, BAD)


@pytest.mark.parametrize(
    ("se", "expected"),
    [
        (NOW + 1, YES),
        (LATER, YES),
        (2**53, YES),
        (f"00{LATER}", YES),
        (NOW, EXP),  # no grace: a token is dead in the second that it names
        (NOW - 1, EXP),
        (NOW - 300, EXP),
        (0, EXP),
        (2**53 + 1, BAD),
        (-1, BAD),
        (f"+{LATER}", BAD),
        (f"{LATER}.0", BAD),
        ("1e12", BAD),
        ("0x7fffffff", BAD),
        ("", BAD),
        (f"{LATER}%20", BAD),
        ("9" * 17, BAD),
        ("1_800_000_000", BAD),
    ],
)
def test_token_is_good_until_its_second_and_not_longer(
    se: str | int,
    expected: str,
    authorities: tuple[Authority, ...],
    make_token: Callable[..., str],
) -> None:
    token = make_token(_escaped_upper(HUB1), "Root", "root-1", se)
    assert _outcome(token, HUB1, "hub1", S, authorities) == expected
