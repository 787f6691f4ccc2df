"""Makes and checks certificates. Only seals of long data use the package `cryptography` besides.

authority = new_authority("lab")
pair = new_pair(authority, "pi.1f0c")      # 30 days
signed = sign(authority.key, data)
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta, timezone

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from weft.errors import InputError

LIFE = timedelta(days=30)
RENEW = timedelta(days=20)  # a certificate with less than this left is renewed
AUTHORITY_LIFE = timedelta(days=3650)
CLOCKS = timedelta(days=1)  # by which a device's clock may be behind
ECDSA = ec.ECDSA(hashes.SHA256())


class Pair(Struct, frozen=True):
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes


def new_authority(fleet: str) -> Pair:
    """A fleet's own authority. Each has its own subject name: a foreign certificate is then refused as one
    of an unknown authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"weft {fleet} {secrets.token_hex(6)}")
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, key.public_key(), AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pair(_pem(certificate), _key_pem(key))


def new_pair(authority: Pair, subject: str, life: timedelta = LIFE) -> Pair:
    """A new key and its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Pair(_issue(authority, subject, key.public_key(), life), _key_pem(key))


def renewed(authority: Pair, certificate: bytes, life: timedelta = LIFE) -> bytes:
    """The same certificate with a later end: the device's key does not leave the device."""
    old = _certificate(certificate)
    return _issue(authority, subject_of(certificate), _public(old), life)


def subject_of(certificate: bytes) -> str:
    """The name that a certificate is for."""
    names = _certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def ends(certificate: bytes) -> datetime:
    """When a certificate ends."""
    return _certificate(certificate).not_valid_after_utc


def expiring(certificate: bytes) -> bool:
    """Whether it is time to renew a certificate."""
    return ends(certificate) - datetime.now(timezone.utc) < RENEW


def check_issued(certificate: bytes, authority: bytes) -> None:
    """Raises InputError for a certificate that this authority did not issue, or that has ended."""
    try:
        _certificate(certificate).verify_directly_issued_by(_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        raise InputError("a certificate that is not of this fleet") from None
    if ends(certificate) < datetime.now(timezone.utc):
        raise InputError(f"a certificate that ended on {ends(certificate):%Y-%m-%d}")


def check_same_key(certificate: bytes, other: bytes) -> None:
    """Raises InputError where two certificates are not for one subject and one key."""
    a, b = _certificate(certificate), _certificate(other)
    if a.subject != b.subject or _public(a).public_numbers() != _public(b).public_numbers():
        raise InputError("a certificate for another device")


def sign(key: bytes, data: bytes) -> bytes:
    """The signature of a private key."""
    private = serialization.load_pem_private_key(key, password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return private.sign(data, ECDSA)


def check_signature(certificate: bytes, data: bytes, signature: bytes) -> None:
    """Raises InputError where the key of this certificate did not sign the data."""
    try:
        _public(_certificate(certificate)).verify(signature, data, ECDSA)
    except InvalidSignature:
        raise InputError("a signature that is not of this fleet") from None


def _issue(authority: Pair, subject: str, key: ec.EllipticCurvePublicKey, life: timedelta) -> bytes:
    issuer = _certificate(authority.certificate)
    usage = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    builder = (
        _builder(_name(subject), issuer.subject, key, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(subject)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    )
    private = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return _pem(builder.sign(private, hashes.SHA256()))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    begin = min(now - CLOCKS, now + life - CLOCKS)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(now + life)
    )


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise InputError(f"not a certificate: {error}") from None


def _public(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError("a certificate with a key that Weft does not make")
    return key


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
