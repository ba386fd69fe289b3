"""TLS: floods of handshakes, stalls, garbage, renegotiation, key updates, old versions."""

from __future__ import annotations

import ctypes
import os
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.amqp.frames import SASL_HEADER

if TYPE_CHECKING:
    from tests.system.conftest import Attacker, Hostile, Kit, Victim

CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the first 11 bytes of 517
LISTENERS = ["amqps", "https"]


def trusting(version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize("listener", LISTENERS)
def test_handshakes_that_are_left_at_once_cost_nothing_for_long(
    victim: Victim, attacker: Attacker, listener: str
) -> None:
    with victim.survives(growth_mb=30):
        for _ in range(60):
            attacker.secure(listener, trusting()).close()


@pytest.mark.parametrize("listener", LISTENERS)
def test_stalled_handshakes_keep_nobody_out(
    victim: Victim, attacker: Attacker, listener: str
) -> None:
    """A hundred of them at every stage; TLS clients come in beside them."""
    with victim.survives(growth_mb=40):
        for number in range(100):
            hostile = attacker.dial(listener)
            hostile.say(CLIENT_HELLO[: number % len(CLIENT_HELLO)] or b"\x16")
        friend = attacker.secure("amqps")
        friend.say(SASL_HEADER)
        assert friend.hear().startswith(SASL_HEADER)


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        SASL_HEADER,
        b"\x16\x03\x01\xff\xff" + bytes(70_000),  # a record above the limit
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",  # a hello of 16 MB
        b"\x15\x03\x03\x00\x02\x02\x28",  # an alert
        bytes(5000),
    ],
    ids=["http", "amqp", "record", "hello", "alert", "zeros"],
)
def test_garbage_instead_of_tls_costs_its_connection(
    victim: Victim, attacker: Attacker, kit: Kit, listener: str, garbage: bytes
) -> None:
    with victim.survives(growth_mb=20):
        crowd = [attacker.dial(listener) for _ in range(10)]
        for hostile in crowd:
            hostile.say(garbage)
        if garbage[:1] == b"\x16" and len(garbage) < 20:
            attacker.close()  # it waits for the rest of the hello, which is one deadline's worth
        else:
            assert kit.all_cut_off(crowd)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_are_refused(
    victim: Victim, attacker: Attacker, version: ssl.TLSVersion
) -> None:
    with pytest.warns(DeprecationWarning):
        context = trusting(version)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        attacker.secure("amqps", context)


def test_compression_and_weak_ciphers_are_not_offered(victim: Victim, attacker: Attacker) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        hostile = attacker.secure("amqps", trusting(version))
        assert isinstance(hostile.raw, ssl.SSLSocket)
        assert hostile.raw.compression() is None
        cipher = hostile.raw.cipher()
        assert cipher is not None
        assert cipher[2] >= 128
    weak = trusting(ssl.TLSVersion.TLSv1_2)
    weak.set_ciphers("AES128-SHA:@SECLEVEL=0")  # no forward secrecy, SHA-1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        attacker.secure("amqps", weak)


# --- after the handshake ------------------------------------------------------------------------


def test_renegotiation_is_refused(victim: Victim) -> None:
    """By the reference client, on its own command."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the openssl program is not installed")
    with victim.survives(growth_mb=20):
        done = subprocess.run(
            [openssl, "s_client", "-tls1_2", "-connect", f"127.0.0.1:{victim.port('amqps')}"],
            input=b"R\n",
            capture_output=True,
            timeout=30,
        )
    said = done.stdout + done.stderr
    assert b"RENEGOTIATING" in said
    assert b"no renegotiation" in said


class KeyUpdates:
    """Python's ssl cannot ask for new keys: OpenSSL is asked, through the object that it made."""

    REQUESTED = 1

    def __init__(self, raw: ssl.SSLSocket) -> None:
        library = next(
            (
                line.split()[-1]
                for line in Path("/proc/self/maps").read_text().splitlines()
                if "libssl" in line
            ),
            None,
        )
        if library is None:
            pytest.skip("OpenSSL is linked into this Python: its functions are out of reach")
        self._raw = raw
        self._library = ctypes.CDLL(library)
        head = 2 * ctypes.sizeof(ctypes.c_void_p)  # reference count and type, then the socket
        at = id(raw._sslobj) + head + ctypes.sizeof(ctypes.c_void_p)  # type: ignore[attr-defined]
        self._ssl = ctypes.c_void_p.from_address(at)
        self._library.SSL_version.argtypes = [ctypes.c_void_p]
        if self._library.SSL_version(self._ssl) != 0x0304:
            pytest.skip("this Python keeps its SSL object elsewhere")

    def ask(self) -> bool:
        """Ask for one; False when the socket takes no more."""
        self._library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self._library.SSL_do_handshake.argtypes = [ctypes.c_void_p]
        if self._library.SSL_key_update(self._ssl, self.REQUESTED) != 1:
            return False
        return bool(self._library.SSL_do_handshake(self._ssl) == 1)


def test_key_updates_without_end_fill_no_memory(victim: Victim, attacker: Attacker) -> None:
    """Each asks for an answer that nobody reads (CVE-2026-39304 of another broker)."""
    with victim.survives(growth_mb=20):
        hostile = attacker.secure("amqps", trusting(ssl.TLSVersion.TLSv1_3))
        assert isinstance(hostile.raw, ssl.SSLSocket)
        hostile.say(SASL_HEADER)
        assert hostile.hear().startswith(SASL_HEADER)
        hostile.raw.setblocking(False)
        updates = KeyUpdates(hostile.raw)
        asked = 0
        while asked < 20_000 and updates.ask():
            asked += 1
        assert asked > 100


def test_strangers_flood_behind_a_goodbye_is_not_read(victim: Victim, attacker: Attacker) -> None:
    """The answer to a bad request ends the connection; what is sent after it stays where it is."""
    with victim.survives(growth_mb=20):
        hostile = attacker.secure("https")
        hostile.say(b"nonsense\r\n\r\n")
        hostile.flood(os.urandom(16_000), bytes_max=32 * 1024 * 1024, seconds=1.0)
        assert is_over(hostile)


def is_over(hostile: Hostile) -> bool:
    return hostile.is_cut_off() and hostile.heard.startswith(b"HTTP/1.1 400 ")
