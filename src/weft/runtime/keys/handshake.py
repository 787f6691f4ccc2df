"""Says why a member is not let in. Zenoh does not tell; a plain TLS handshake does, in milliseconds."""

from __future__ import annotations

import select
import socket
import ssl
import time

from weft.runtime.keys.folder import Keys

WAIT_S = 2.0
WORDS = {
    "CERTIFICATE_VERIFY_FAILED": "it is not of this fleet: its certificate is from another authority",
    "UNKNOWN_CA": "it does not know this fleet's authority: it is not of this fleet",
    "CERTIFICATE_EXPIRED": "this machine's certificate has expired; the owner invites it again",
    "CERTIFICATE_REQUIRED": "it wants a certificate, and none was shown",
    "BAD_CERTIFICATE": "it does not accept this machine's certificate",
    "DECRYPT_ERROR": "it does not accept this machine's certificate",
    "WRONG_VERSION_NUMBER": "it speaks no TLS: was it started with --open, or without keys?",
    "RECORD_LAYER_FAILURE": "it speaks no TLS: was it started with --open, or without keys?",
    "UNEXPECTED_EOF_WHILE_READING": "it closed the connection: it speaks no TLS",
}


def why_refused(endpoint: str, keys: Keys | None, wait_s: float = WAIT_S) -> str:
    """Why a node at this endpoint does not let this machine in; "" if it does.

    Without keys it is asked whether the node wants a certificate.
    """
    host, _, port = endpoint.split("#")[0].partition("/")[2].rpartition(":")
    end = time.monotonic() + wait_s
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if keys is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(keys.authority)
        context.load_cert_chain(keys.certificate, keys.key)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), wait_s) as plain:
            plain.settimeout(max(0.01, end - time.monotonic()))
            try:
                with context.wrap_socket(plain) as tls:
                    return _afterwards(tls, end)
            except TimeoutError:  # a node without keys says nothing at all
                return f"{WORDS['WRONG_VERSION_NUMBER']} (no answer within {wait_s:g} s)"
    except ssl.SSLError as error:
        return words_of(error)
    except TimeoutError:
        return f"no answer within {wait_s:g} s: is the address right, and is a node running there?"
    except (OSError, ValueError) as error:
        return f"{getattr(error, 'strerror', None) or error}: is a node running there?"


def _afterwards(tls: ssl.SSLSocket, end: float) -> str:
    """The other side judges this machine's certificate after the handshake: it sends an alert or a ticket."""
    tls.setblocking(False)
    select.select([tls], [], [], max(0.0, end - time.monotonic()))
    try:
        return "" if tls.recv(1) else "it closed the connection"
    except ssl.SSLWantReadError:
        return ""
    except ssl.SSLError as error:
        return words_of(error)


def words_of(error: ssl.SSLError) -> str:
    """An error of OpenSSL in plain words."""
    reason = error.reason or ""
    if "has expired" in str(error):
        return (
            "its certificate has expired: start its node again after the owner has invited it again"
        )
    for name, words in WORDS.items():
        if name in reason:
            return words
    return f"the TLS handshake failed: {reason or error}"
