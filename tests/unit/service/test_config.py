"""Settings from flags, environment and file, and the one sentence for each that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model import limits
from penstock.model.entities import LimitSet, Right, Secret, Tier
from penstock.model.errors import ConfigurationError
from penstock.model.names import ROOT_RULE
from penstock.service.config.loader import load_settings
from penstock.service.config.settings import SETTINGS, Settings

Load = Callable[..., Settings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Settings from a TOML text, with flags and environment beside it."""

    def from_text(text: str, environ: dict[str, str] | None = None, **flags: object) -> Settings:
        file = tmp_path / "penstock.toml"
        file.write_text(text)
        return load_settings(flags={"config": file, **flags}, environ=environ or {})

    return from_text


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        call()
    return str(caught.value)


def test_without_any_configuration_there_is_one_namespace_with_events() -> None:
    settings = load_settings(flags={}, environ={})

    assert settings == Settings()
    assert [namespace.name for namespace in settings.namespaces] == ["penstock"]
    assert [hub.name for hub in settings.namespaces[0].hubs] == ["events"]
    assert settings.throughput_units is None
    assert settings.is_loopback


def test_flags_win_over_environment_and_environment_over_file(load: Load) -> None:
    text = "amqp_port = 1\namqps_port = 1001\nhttps_port = 1002\n"
    environ = {"PENSTOCK_AMQP_PORT": "2", "PENSTOCK_AMQPS_PORT": "2001"}

    settings = load(text, environ, amqp_port=3)

    assert (settings.amqp_port, settings.amqps_port, settings.https_port) == (3, 2001, 1002)


def test_every_setting_is_heard_from_the_environment(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("a-key-in-a-file\n")
    given = {
        "DATA": ("/d", "data", Path("/d")),
        "HOST": ("LocalHost", "host", "localhost"),
        "PUBLIC_HOSTS": ("Hub.example.net, [::2]", "public_hosts", ("hub.example.net", "::2")),
        "AMQP_PORT": ("0", "amqp_port", 0),
        "AMQPS_PORT": ("1", "amqps_port", 1),
        "HTTPS_PORT": ("2", "https_port", 2),
        "ADMIN_PORT": ("3", "admin_port", 3),
        "PORTAL": ("no", "portal", False),
        "PORTAL_PORT": ("4", "portal_port", 4),
        "PORTAL_ENVIRONMENT": ("Production", "portal_environment", "Production"),
        "PORTAL_READ_ONLY": ("yes", "portal_read_only", True),
        "PORTAL_USERS_FILE": ("/u", "portal_users_file", Path("/u")),
        "PORTAL_TRUSTED_PROXIES": ("2", "portal_trusted_proxies", 2),
        "PORTAL_MASK": ("json.card, key", "portal_mask", "json.card, key"),
        "FLUSH": ("OS", "flush", "os"),
        "JSON": ("1", "json", True),
        "EMULATOR": ("1", "emulator", True),
        "LOG_LEVEL": ("Debug", "log_level", "debug"),
        "SLOW_OPERATION_MS": ("250", "slow_operation_ms", 250),
        "LIMITS": ("current", "limits", LimitSet.CURRENT),
        "AUTH_EXPIRY_GRACE_SECONDS": ("90", "auth_expiry_grace_seconds", 90),
        "TLS_CERTIFICATE_FILE": ("/c", "tls_certificate_file", Path("/c")),
        "TLS_KEY_FILE": ("/k", "tls_key_file", Path("/k")),
        "TLS_CA_FILE": ("/a", "tls_ca_file", Path("/a")),
    }
    environ = {f"PENSTOCK_{name}": text for name, (text, _, _) in given.items()}
    environ |= {"PENSTOCK_HUBS": "orders:8, audit", "PENSTOCK_THROUGHPUT_UNITS": "7"}
    environ |= {"PENSTOCK_ROOT_KEY_FILE": str(key_file)}

    settings = load_settings(flags={}, environ=environ)

    assert {f: getattr(settings, f) for _, f, _ in given.values()} == {
        f: value for _, f, value in given.values()
    }
    namespace = settings.namespaces[0]
    assert [(h.name, h.partition_count) for h in namespace.hubs[1:]] == [
        ("orders", 8),
        ("audit", None),
    ]
    assert namespace.throughput_units == 7
    root = namespace.rule("rootmanagesharedaccesskey")
    assert root is not None and root.primary_key == Secret("a-key-in-a-file")
    heard = {*environ, "PENSTOCK_CONFIG", "PENSTOCK_ROOT_KEY"}
    assert heard == {setting.variable for setting in SETTINGS}


def test_an_empty_variable_is_not_given() -> None:
    assert load_settings(flags={}, environ={"PENSTOCK_AMQP_PORT": ""}) == Settings()


def test_flags_that_were_not_given_change_nothing() -> None:
    flags: dict[str, object] = {"amqp_port": None, "hubs": [], "json": None}
    assert load_settings(flags=flags, environ={}) == Settings()


@pytest.mark.parametrize(
    ("host", "given", "port"),
    [
        ("127.0.0.1", None, 5672),
        ("127.8.8.8", None, 5672),
        ("localhost", None, 5672),
        ("::1", None, 5672),
        ("[::1]", None, 5672),
        ("0.0.0.0", None, None),
        ("::", None, None),
        ("broker.example.com", None, None),
        ("0.0.0.0", 5672, 5672),
    ],
)
def test_plain_tcp_opens_beyond_loopback_only_when_asked_for(
    host: str, given: int | None, port: int | None
) -> None:
    settings = load_settings(flags={"host": host, "amqp_port": given}, environ={})
    assert settings.amqp_port == port


def test_paths_in_a_file_start_at_its_folder(load: Load, tmp_path: Path) -> None:
    settings = load('data = "store"')
    assert settings.data == tmp_path / "store"
    assert load_settings(flags={"data": "store"}, environ={}).data == Path("store")


def test_limits_of_a_flag_win_over_the_namespaces_and_these_over_the_files(load: Load) -> None:
    text = "limits = 'current'\n[[namespaces]]\nname = 'telemetry'\n"
    own = "limits = 'specification'\n[[namespaces]]\nname = 'reporting'\n"
    of_file = [namespace.limits for namespace in load(text + own).namespaces]
    assert of_file == [LimitSet.SPECIFICATION, LimitSet.CURRENT]
    stated = load(text + own, limits="current", hubs=["one:1"])
    assert [namespace.limits for namespace in stated.namespaces] == [LimitSet.CURRENT] * 2
    assert stated.namespaces[0].hubs[-1].partition_count == 1
    assert load("").namespaces[0].limits is None  # an existing namespace keeps what it has


def test_a_flags_hubs_join_the_files(load: Load) -> None:
    text = """
        [[namespaces]]
        name = "telemetry"
        [[namespaces.hubs]]
        name = "Orders"
        retention_hours = 5
    """
    settings = load(text, hubs=["orders:8", "audit"])

    hubs = settings.namespaces[0].hubs
    assert [(h.name, h.partition_count, h.retention_hours) for h in hubs] == [
        ("Orders", 8, 5),
        ("audit", None, None),
    ]
    assert settings.namespaces_given


@pytest.mark.parametrize(
    ("environ", "flags", "units"),
    [
        ({}, {}, 2),  # the namespace's own line is more special than the file's top
        ({"PENSTOCK_THROUGHPUT_UNITS": "9"}, {}, 9),
        ({"PENSTOCK_THROUGHPUT_UNITS": "9"}, {"throughput_units": "unlimited"}, None),
        ({}, {"throughput_units": 20}, 20),
    ],
)
def test_units_of_the_default_namespace_follow_the_nearest_word(
    load: Load, environ: dict[str, str], flags: dict[str, object], units: int | None
) -> None:
    text = 'throughput_units = 5\n[[namespaces]]\nname = "telemetry"\nthroughput_units = 2'
    assert load(text, environ, **flags).throughput_units == units


def test_a_rules_key_may_stand_elsewhere(load: Load, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("from-a-file\n")
    text = """
        [[namespaces]]
        name = "telemetry"
        [[namespaces.rules]]
        name = "senders"
        rights = ["Send", "listen"]
        key_file = "secret.txt"
        secondary_key_env = "SECOND"
    """
    (rule,) = load(text, {"SECOND": "from-a-variable"}).namespaces[0].rules
    assert rule.primary_key == Secret("from-a-file")
    assert rule.secondary_key == Secret("from-a-variable")
    assert rule.rights == Right.SEND | Right.LISTEN


def test_manage_includes_the_other_rights(load: Load) -> None:
    text = '[[namespaces]]\nname = "telemetry"\nrules = [{name = "all", rights = ["manage"]}]'
    assert load(text).namespaces[0].rules[0].rights is Right.ALL


def test_root_key_of_the_environment_replaces_the_files(load: Load) -> None:
    text = f"""
        [[namespaces]]
        name = "telemetry"
        rules = [{{name = "{ROOT_RULE}", rights = ["manage"], key = "a", secondary_key = "b"}}]
    """
    (rule,) = load(text, {"PENSTOCK_ROOT_KEY": "c"}).namespaces[0].rules
    assert (rule.primary_key, rule.secondary_key) == (Secret("c"), Secret("b"))


def test_dedicated_namespaces_have_no_units(load: Load) -> None:
    text = '[[namespaces]]\nname = "telemetry"\ntier = "dedicated"'
    assert load(text).namespaces[0].tier is Tier.DEDICATED
    assert "no throughput units" in refusal(lambda: load(text + "\nthroughput_units = 1"))
    assert "no throughput units" in refusal(lambda: load(text, throughput_units=1))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("amqp_port = 99999", "line 1: amqp_port is 99999: a whole number from 0 to 65535 is"),
        ("\namqp_port = '5672'", "line 2: amqp_port is '5672': a whole number from 0 to 65535"),
        ("amqp_port = true", "line 1: amqp_port is true: a whole number"),
        ("amqp_port = 1.5", "line 1: amqp_port is 1.5: a whole number"),
        ("data = 7", "line 1: data is 7: a path is allowed"),
        ("data = ''", "line 1: data is '': a path is allowed"),
        ("host = 'a:5672'", "line 1: host is 'a:5672': a host name or address without port"),
        ("host = '*'", "line 1: host is '*': a host name or address"),
        ("flush = 'never'", "line 1: flush is 'never': disk or os is allowed"),
        ("flush = ['disk']", "line 1: flush is a list: disk or os is allowed"),
        ("json = 1", "line 1: json is 1: true or false is allowed"),
        ("log_level = 'loud'", "log_level is 'loud': debug or error or info or warning is allowed"),
        (
            "throughput_units = 21",
            "is 21: a whole number from 1 to 20, with a grant 40, 60, 80, 100 ",
        ),
        ("throughput_units = 0", "or a multiple of 100, or unlimited, is allowed"),
        ("hubs = 'orders'", "hubs is 'orders': a list is allowed"),
        (
            "hubs = ['orders:1']",
            "line 1: hubs[0] is 'orders:1': a whole number from 2 to 32, with a grant to 1024, is "
            "allowed (limits are 'specification')",
        ),
        ("public_hosts = 'a'", "public_hosts is 'a': a list is allowed"),
        (
            "public_hosts = ['a:5671']",
            "line 1: public_hosts[0] is 'a:5671': a host name or address without port is allowed",
        ),
        ("limits = 'azure'", "line 1: limits is 'azure': specification or current is allowed"),
        (
            "limits = 'current'\nhubs = ['orders:0']",
            "hubs[0] is 'orders:0': a whole number from 1 to 32, with a grant to 1024, is allowed",
        ),
        (
            "limits = 'current'\n[[namespaces]]\nname = 'telemetry'\nlimits = 'specification'\n"
            "[[namespaces.hubs]]\nname = 'a'\npartition_count = 1",
            "line 7: namespaces[0].hubs[0].partition_count is 1: a whole number from 2 to 32",
        ),
        (
            "hubs = ['orders:']",
            "line 1: hubs[0] is 'orders:': a whole number from 2 to 32, with a grant to",
        ),
        ("hubs = ['no way']", "line 1: hubs[0]: The event hub name 'no way' is invalid"),
        ("hubs = [5]", "line 1: hubs[0] is 5: NAME or NAME:PARTITIONS is allowed"),
        ("hubs = ['a', 'A']", "line 1: hubs[1]: 'A' is there twice"),
        ("tls = 1", "line 1: tls is 1: a table is allowed"),
        ("namespaces = 1", "line 1: namespaces is 1: a list is allowed"),
        ("namespaces = [1]", "line 1: namespaces[0] is 1: a table is allowed"),
        ("root_key_file = 'none'", "the file cannot be read (No such file or directory)"),
        ("config = 'other.toml'", "line 1: 'config' is not a setting"),
        ("root_key = 'x'", "line 1: 'root_key' is not a setting: did you mean 'root_key_file'?"),
        ("amqp_prot = 5672", "line 1: 'amqp_prot' is not a setting: did you mean 'amqp_port'?"),
        ("AMQP_PORT = 5672", "line 1: 'AMQP_PORT' is not a setting: did you mean 'amqp_port'?"),
        ("qqqq = 5672", "line 1: 'qqqq' is not a setting: known here are admin_port, amqp_port"),
        ("[tls]\nkeyfile = 'x'", "line 2: 'keyfile' is not a setting: did you mean 'key_file'?"),
        (
            "[auth]\nexpiry_grace_seconds = 601",
            "line 2: auth.expiry_grace_seconds is 601: a whole ",
        ),
        ("[tls]\nkey_file = 'x'", "line 2: tls.key_file is given without tls.certificate_file"),
        ("amqp_port = \n", "this is not valid TOML (Invalid value (at line 1"),
        ("amqp_port = 8443", "line 1: amqp_port is 8443, and so is https_port"),
    ],
)
def test_a_bad_line_is_named_with_what_is_allowed(load: Load, text: str, sentence: str) -> None:
    said = refusal(lambda: load(text))
    assert "penstock.toml" in said
    assert sentence in said
    assert "\n" not in said


NAMESPACE = '[[namespaces]]\nname = "telemetry"\n'
HUB = NAMESPACE + '[[namespaces.hubs]]\nname = "orders"\n'
RULE = NAMESPACE + '[[namespaces.rules]]\nname = "senders"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[namespaces]]\ntier = 'standard'", "line 1: namespaces[0] has no 'name', which it"),
        (
            "[[namespaces]]\nname = 'abc'",
            "line 2: namespaces[0].name: The namespace name 'abc' has",
        ),
        ("[[namespaces]]\nname = 5", "line 2: namespaces[0].name is 5: a name is allowed"),
        (NAMESPACE + "teir = 1", "line 3: 'teir' is not a setting: did you mean 'tier'?"),
        (
            NAMESPACE + "tier = 'gold'",
            "line 3: namespaces[0].tier is 'gold': standard or dedicated",
        ),
        (NAMESPACE + NAMESPACE, "line 3: namespaces[1]: 'telemetry' is there twice"),
        (NAMESPACE + "hosts = ['a b']", "line 3: namespaces[0].hosts[0] is 'a b': a host name"),
        (NAMESPACE + "hosts = ['a', 'A']", "namespaces[0].hosts[1]: 'a' is there twice"),
        (
            NAMESPACE + f"hosts = {['h' + str(n) for n in range(65)]}",
            "hosts has 65 entries: at most",
        ),
        (HUB + "partition_count = 1025", "5: namespaces[0].hubs[0].partition_count is 1025: a"),
        (HUB + "partition_count = 1", "partition_count is 1: a whole number from 2 to 32"),
        (HUB + "retention_hours = 169", "retention_hours is 169: a whole number from 1 to 168"),
        (HUB + "groups = ['a', 'a']", "hubs[0].groups[1]: 'a' is there twice"),
        (
            HUB + f"groups = {['g' + str(n) for n in range(21)]}",
            "groups has 21 entries: at most 20",
        ),
        (
            HUB + "groups = ['a', '-']",
            "line 5: namespaces[0].hubs[0].groups[1]: The consumer group",
        ),
        (
            HUB + "[[namespaces.hubs]]\nname = 'ORDERS'",
            "line 5: namespaces[0].hubs[1]: 'ORDERS' is there",
        ),
        (
            HUB + "[[namespaces.hubs]]\nnam = 'x'",
            "line 6: 'nam' is not a setting: did you mean 'name'",
        ),
        (HUB + "[[namespaces.hubs]]\n", "line 5: namespaces[0].hubs[1] has no 'name'"),
        (RULE, "line 3: namespaces[0].rules[0] has no 'rights', which it needs"),
        (RULE + "rights = ['write']", "rules[0].rights[0] is 'write': listen or send or manage"),
        (RULE + "rights = ['send']\nkey = ''", "key is no usable key: 1 to 256 printable"),
        (RULE + "rights = ['send']\nkey = 'a'\nkey_env = 'b'", "has key and key_env: one of them"),
        (RULE + "rights = ['send']\nkey_env = 'NONE'", "key_env is 'NONE': that environment"),
        (RULE + "rights = ['send']\nkey_env = 1", "key_env is 1: the name of an environment"),
    ],
)
def test_a_bad_line_of_a_namespace_is_named(load: Load, text: str, sentence: str) -> None:
    assert sentence in refusal(lambda: load(text))


def test_rules_beyond_the_limit_are_refused(load: Load) -> None:
    rules = [f'{{name = "r{n}", rights = ["send"]}}' for n in range(13)]
    text = NAMESPACE + f"rules = [{', '.join(rules)}]"
    assert f"at most {limits.AUTHORIZATION_RULES_MAX} are allowed" in refusal(lambda: load(text))


def test_a_host_belongs_to_one_namespace(load: Load) -> None:
    text = NAMESPACE + "hosts = ['a.b']\n[[namespaces]]\nname = 'another'\nhosts = ['A.B']"
    assert "namespaces[1]: 'a.b' is there twice" in refusal(lambda: load(text))


@pytest.mark.parametrize(
    ("environ", "flags", "sentence"),
    [
        ({"PENSTOCK_AMQP_PORT": "x"}, {}, "PENSTOCK_AMQP_PORT is 'x': a whole number from 0"),
        ({"PENSTOCK_AMQP_PORT": "9" * 5000}, {}, "PENSTOCK_AMQP_PORT is '999"),
        ({"PENSTOCK_JSON": "maybe"}, {}, "PENSTOCK_JSON is 'maybe': true or false is allowed."),
        ({}, {"amqps_port": -1}, "--amqps-port is -1: a whole number from 0 to 65535"),
        ({}, {"hubs": ["a:b"]}, "--hub is 'a:b': a whole number from 2 to 32, with a grant to"),
        ({}, {"amqp_port": 5671}, "--amqp-port is 5671, and so is amqps_port: each listener needs"),
        ({"PENSTOCK_CONFIG": "/none"}, {}, "PENSTOCK_CONFIG is '/none': the file cannot be read"),
        ({}, {"config": "/"}, "--config is '/': the file cannot be read (Is a directory)."),
    ],
)
def test_a_bad_variable_or_flag_is_named(
    environ: dict[str, str], flags: dict[str, object], sentence: str
) -> None:
    said = refusal(lambda: load_settings(flags=flags, environ=environ))
    assert sentence in said
    assert len(said) < 300


def test_no_refusal_shows_a_key(load: Load, tmp_path: Path) -> None:
    secret = "swordfish;" * 3
    (tmp_path / "key").write_text(secret)
    rule = RULE + "rights = ['send']\n"
    for said in (
        refusal(lambda: load(rule + f"key = '{secret}'")),
        refusal(lambda: load(rule + "key_file = 'key'")),
        refusal(lambda: load(rule + "key_env = 'K'", {"K": secret})),
        refusal(lambda: load_settings(flags={}, environ={"PENSTOCK_ROOT_KEY": secret})),
    ):
        assert "swordfish" not in said
        assert "no usable key" in said


@pytest.mark.parametrize("key", ["x", "two words", "SAS_KEY_VALUE", "k" * 256])
def test_a_configured_key_may_be_weak(load: Load, key: str) -> None:
    (rule,) = load(RULE + f"rights = ['send']\nkey = '{key}'").namespaces[0].rules
    assert rule.primary_key is not None and rule.primary_key.reveal() == key


def test_settings_do_not_show_keys(load: Load) -> None:
    text = RULE + "rights = ['send']\nkey = 'swordfish'"
    assert "swordfish" not in repr(load(text, {"PENSTOCK_ROOT_KEY": "swordfish"}))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"#" * (limits.MB + 1)])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "penstock.toml"
    file.write_bytes(content)
    said = refusal(lambda: load_settings(flags={"config": file}, environ={}))
    assert str(file) in said and "is allowed" in said


@pytest.mark.parametrize("content", [b"\xff" * 10, b"k" * 5000, b"", b"a;b=c"])
def test_a_key_file_that_holds_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    environ = {"PENSTOCK_ROOT_KEY_FILE": str(file)}
    said = refusal(lambda: load_settings(flags={}, environ=environ))
    assert "is no usable key" in said and str(file) in said


def test_the_published_key_is_refused_beyond_loopback(load: Load) -> None:
    text = NAMESPACE + "rules = [{name = 'r', rights = ['send'], key = 'SAS_KEY_VALUE'}]"
    assert "emulator's published one" in refusal(lambda: load(text, host="0.0.0.0"))
    assert load(text).namespaces[0].rules[0].name == "r"


def test_the_emulator_accepts_its_published_key_everywhere_and_opens_its_ports() -> None:
    environ = {"PENSTOCK_EMULATOR": "1", "PENSTOCK_ROOT_KEY": "SAS_KEY_VALUE"}
    settings = load_settings(flags={"host": "0.0.0.0"}, environ=environ)
    assert (settings.amqp_port, settings.is_plain) == (5672, True)
    assert settings.public_hosts == ("localhost",)  # the name in its users' connection strings
    named = load_settings(flags={"host": "0.0.0.0", "public_hosts": ["hub"]}, environ=environ)
    assert named.public_hosts == ("hub",)
    without = {"PENSTOCK_ROOT_KEY": "SAS_KEY_VALUE", "PENSTOCK_EMULATOR": "0"}
    said = refusal(lambda: load_settings(flags={"host": "0.0.0.0"}, environ=without))
    assert "PENSTOCK_EMULATOR=1" in said


@pytest.mark.parametrize("text", ["card", "key,,key", "", "json.a b", "json."])
def test_a_mask_of_no_field_is_refused(load: Load, text: str) -> None:
    with pytest.raises(ConfigurationError, match="with commas between them"):
        load(f'portal_mask = "{text}"')
