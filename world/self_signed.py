"""Certificates of our own making, for encryption without authentication (RocketMQ's TLS test mode) and for tests.

Needs `cryptography`, the extra `tls`; imported only where a certificate has to be made.
"""

from __future__ import annotations

import ssl
import tempfile
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

DAYS_VALID = 3650


def self_signed(name: str = "ledgermq", password: str = "") -> tuple[bytes, bytes]:
    """A new certificate that vouches for itself, and its key (PKCS #8, encrypted if there is a password), both in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(names)
        .issuer_name(names)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + timedelta(days=DAYS_VALID))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encryption: KeySerializationEncryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return certificate.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def load_self_signed(context: ssl.SSLContext) -> None:
    """Let `context` present a new self-signed certificate."""
    with tempfile.NamedTemporaryFile(prefix="ledgermq-") as file:  # readable by this user alone; `ssl` reads only files
        file.write(b"".join(self_signed()))
        file.flush()
        context.load_cert_chain(file.name)
