"""The text of a SAS token (protocol.md 2.5)."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from urllib.parse import quote, quote_plus, unquote, urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.auth.sas import SasToken, parse_token, sign
from penstock.model import limits
from penstock.model.entities import Secret
from penstock.model.errors import ArgumentOutOfRange, AuthFailed

KEY = Secret("SAS_KEY_VALUE")
POLICY = "RootManageSharedAccessKey"
SE = 1_700_000_000
HUB = "sb://contoso.servicebus.windows.net/eh1"
GROUP = f"{HUB}/consumergroups/$Default"
HUB_SIG = "EIEpyw4qtWbb%2FYWsQMukvdMa3Wh9u8wC8%2B2lMXkhE4w%3D"
GROUP_SIG = "jGhvLkK9Jvlz3JndT4aiEahV%2BXrLxIF%2FPJQrBByL7HM%3D"
GO_SR = "amqps%3a%2f%2fcontoso.servicebus.windows.net%2feh1"
GO_SIG = "%2Fky197NubpNSQIR7oc1cWJHCN4F4gzKBR37Im0Uvdfw%3D"
GOOD = f"SharedAccessSignature sr={quote(HUB, safe='')}&sig={HUB_SIG}&se={SE}&skn={POLICY}"


@pytest.mark.parametrize(("resource", "sig"), [(HUB, HUB_SIG), (GROUP, GROUP_SIG)])
def test_sign_gives_the_worked_vectors(resource: str, sig: str) -> None:
    token = sign(resource, POLICY, KEY, expires_s=SE)
    sr = quote_plus(resource)
    assert token == f"SharedAccessSignature sr={sr}&sig={sig}&se={SE}&skn={POLICY}"


def test_go_vector_is_over_the_lower_case_escapes() -> None:
    token = parse_token(f"SharedAccessSignature sr={GO_SR}&sig={GO_SIG}&se={SE}&skn={POLICY}")
    assert token.raw_resource == GO_SR
    assert token.resource == "amqps://contoso.servicebus.windows.net/eh1"
    assert token.signature == b64decode(unquote(GO_SIG))
    assert token.string_to_sign == f"{GO_SR}\n{SE}".encode()


def test_parse_reads_every_field() -> None:
    token = parse_token(GOOD)
    assert token == SasToken(
        raw_resource=quote(HUB, safe=""),
        resource=HUB,
        signature=b64decode(unquote(HUB_SIG)),
        raw_expiry=str(SE),
        expiry_s=SE,
        key_name=POLICY,
    )


def test_sign_and_parse_agree_on_any_policy_and_resource() -> None:
    token = parse_token(sign("sb://h/a b+c/é%", "a.b-c_d", KEY, expires_s=2**53))
    assert token.resource == "sb://h/a b+c/é%"
    assert (token.key_name, token.expiry_s) == ("a.b-c_d", 2**53)


@pytest.mark.parametrize("expires_s", [-1, 2**53 + 1])
def test_sign_refuses_a_time_out_of_range(expires_s: int) -> None:
    with pytest.raises(ArgumentOutOfRange, match=str(expires_s)):
        sign(HUB, POLICY, KEY, expires_s=expires_s)


@pytest.mark.parametrize("order", ["sr sig se skn", "skn se sig sr", "se skn sr sig"])
def test_parse_takes_any_order(order: str) -> None:
    fields = {"sr": quote(HUB, safe=""), "sig": HUB_SIG, "se": str(SE), "skn": POLICY}
    text = "&".join(f"{name}={fields[name]}" for name in order.split())
    assert parse_token(f"SharedAccessSignature {text}") == parse_token(GOOD)


def test_parse_takes_the_python_sdks_double_escaped_policy() -> None:
    fields = {"sr": HUB, "sig": unquote(HUB_SIG), "se": SE, "skn": quote_plus("a b/c")}
    assert parse_token(f"SharedAccessSignature {urlencode(fields)}").key_name == "a b/c"


@pytest.mark.parametrize("skn", ["Root.1", "Root%2E1", "%52oot%2e1", "Root%252e1"])
def test_parse_takes_a_policy_unescaped_and_escaped_once_or_twice(skn: str) -> None:
    assert parse_token(GOOD.replace(POLICY, skn)).key_name == "Root.1"


@pytest.mark.parametrize("sig", [HUB_SIG, unquote(HUB_SIG), unquote(HUB_SIG).replace("+", " ")])
def test_parse_takes_a_signature_escaped_or_not(sig: str) -> None:
    assert parse_token(GOOD.replace(HUB_SIG, sig)).signature == parse_token(GOOD).signature


def test_parse_takes_a_signature_with_lower_case_escapes() -> None:
    lower = HUB_SIG.replace("%2F", "%2f").replace("%2B", "%2b").replace("%3D", "%3d")
    assert parse_token(GOOD.replace(HUB_SIG, lower)).signature == parse_token(GOOD).signature


@pytest.mark.parametrize("prefix", ["sharedaccesssignature ", "SHAREDACCESSSIGNATURE   "])
def test_parse_takes_its_prefix_in_any_case(prefix: str) -> None:
    assert parse_token(GOOD.replace("SharedAccessSignature ", prefix)) == parse_token(GOOD)


def test_parse_passes_over_unknown_parameters() -> None:
    assert parse_token(f"{GOOD}&sv=1&x") == parse_token(GOOD)


def test_plus_in_the_resource_is_a_space_as_the_sdks_write_it() -> None:
    token = parse_token(GOOD.replace("eh1", "a+b%2Bc"))
    assert token.resource.endswith("/a b+c")


MALFORMED: list[tuple[str, str, str]] = [
    ("empty", "", "does not begin"),
    ("no prefix", GOOD.partition(" ")[2], "does not begin"),
    ("prefix alone", "SharedAccessSignature", "missing"),
    ("prefix glued", GOOD.replace(" ", ""), "does not begin"),
    ("basic", "Basic dXNlcjpwYXNz", "does not begin"),
    ("bearer", "Bearer eyJhbGciOi.eyJpc3Mi.c2ln", "only SharedAccessSignature"),
    ("jwt", "eyJhbGciOiJub25lIn0.eyJpc3MiOiJ4In0.c2ln", "only SharedAccessSignature"),
    ("no sr", GOOD.replace("sr=", "rs="), "'sr' is missing"),
    ("no sig", GOOD.replace("sig=", "gis="), "'sig' is missing"),
    ("no se", GOOD.replace("&se=", "&es="), "'se' is missing"),
    ("no skn", GOOD.replace("skn=", "nks="), "'skn' is missing"),
    ("upper-case name", GOOD.replace("sr=", "SR="), "'sr' is missing"),
    ("sr empty", GOOD.replace(quote(HUB, safe=""), ""), "'sr'"),
    ("sr broken escape", GOOD.replace("eh1", "eh1%2"), "'sr'"),
    ("sr not UTF-8", GOOD.replace("eh1", "%ff"), "'sr'"),
    (
        "sr escapes letters of a publisher twice",
        GOOD.replace("eh1", "eh1%2Fpublishers%2F%2561lice"),
        "as %25",
    ),
    ("sig empty", GOOD.replace(HUB_SIG, ""), "'sig'"),
    ("sig no base64", GOOD.replace(HUB_SIG, "!!!!"), "'sig'"),
    ("sig without padding", GOOD.replace("%3D", ""), "'sig'"),
    ("sig broken escape", GOOD.replace("%3D", "%"), "'sig'"),
    ("se empty", GOOD.replace(str(SE), ""), "'se'"),
    ("se negative", GOOD.replace(str(SE), "-1"), "'se'"),
    ("se a date", GOOD.replace(str(SE), "2030-01-01"), "'se'"),
    ("se too large", GOOD.replace(str(SE), str(2**53 + 1)), "above 9007199254740992"),
    ("se endless", GOOD.replace(str(SE), "9" * 4000), "'se'"),
    ("skn empty", GOOD.replace(POLICY, ""), "'skn'"),
    ("skn broken escape", GOOD.replace(POLICY, "a%2"), "'skn'"),
    ("sr twice", f"{GOOD}&sr=x", "twice"),
    ("sig twice", f"{GOOD}&sig={HUB_SIG}", "twice"),
    ("se twice", f"{GOOD}&se={SE}", "twice"),
    ("skn twice", f"{GOOD}&skn={POLICY}", "twice"),
    ("unknown twice", f"{GOOD}&x=1&x=2", "twice"),
    ("too many", GOOD + "".join(f"&x{n}=1" for n in range(20)), "more than 16"),
    ("not ASCII", GOOD.replace("eh1", "é"), "must be escaped"),
    ("control character", f"{GOOD}\n", "must be escaped"),
    ("NUL", GOOD.replace("eh1", "\0"), "must be escaped"),
    ("too long", GOOD.replace("eh1", "e" * limits.SAS_TOKEN_BYTES_MAX), "8192 are allowed"),
]


@pytest.mark.parametrize(
    ("text", "says"), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED]
)
def test_parse_refuses_what_is_no_token_and_says_why(text: str, says: str) -> None:
    with pytest.raises(AuthFailed, match=r"^MalformedToken: ") as caught:
        parse_token(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300


def test_longest_token_is_taken() -> None:
    room = limits.SAS_TOKEN_BYTES_MAX - len(GOOD)
    assert parse_token(GOOD.replace("eh1", "eh1" + "e" * room)).key_name == POLICY


def test_repr_hides_the_signature() -> None:
    token = parse_token(GOOD)
    shown = f"{token!r} {token}"
    assert "EIEpyw" not in shown
    assert repr(token.signature)[2:10] not in shown
    assert POLICY in shown


@pytest.mark.parametrize("secret", ["EIEpyw", "YWsQMukvdMa3"])
def test_no_error_repeats_the_signature(secret: str) -> None:
    for spoiled in (f"{GOOD}&se=1", GOOD.replace("%3D", "%"), GOOD[:-30]):
        with pytest.raises(AuthFailed) as caught:
            parse_token(spoiled)
        assert secret not in str(caught.value)


def _pieces() -> st.SearchStrategy[str]:
    names = st.sampled_from(["sr", "sig", "se", "skn", "x", ""])
    values = st.one_of(
        st.text(max_size=20),
        st.sampled_from([quote(HUB, safe=""), HUB_SIG, str(SE), POLICY, "%", "%zz", "%ff", "+"]),
    )
    pair = st.builds(lambda name, value: f"{name}={value}", names, values)
    return st.lists(pair, max_size=8).map(lambda pairs: "SharedAccessSignature " + "&".join(pairs))


@given(st.one_of(st.text(), _pieces()))
@example("SharedAccessSignature \ud800")
@example("SharedAccessSignature sr=%ed%a0%80&sig=AAAA&se=1&skn=a")
def test_parse_raises_auth_failed_and_nothing_else(text: str) -> None:
    try:
        token = parse_token(text)
    except AuthFailed as error:
        assert str(error).startswith("MalformedToken: ")
    else:
        assert token.resource
        assert token.key_name
        assert 0 <= token.expiry_s <= 2**53


@given(
    resource=st.text(min_size=1, max_size=100),
    policy=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    expires_s=st.integers(0, 2**53),
)
def test_parse_reads_back_what_sign_made(resource: str, policy: str, expires_s: int) -> None:
    token = parse_token(sign(resource, policy, KEY, expires_s=expires_s))
    assert (token.resource, token.key_name) == (resource, policy)
    assert token.expiry_s == expires_s


def test_independent_signer_agrees(make_token: Callable[..., str]) -> None:
    assert make_token(quote(HUB, safe=""), POLICY, "SAS_KEY_VALUE", SE) == GOOD
