"""A private certificate authority whose certificates pass strict checks."""

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class Authority:
    """Issues certificates that pass strict checks, such as those of Python since 3.13."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.file = home / "authority.pem"
        certificate = self._signed(self._name, self._key, is_authority=True)
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _signed(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        days: tuple[float, float] = (-1, 1),
        *,
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        constraints = x509.BasicConstraints(ca=is_authority, path_length=None)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        use = dict.fromkeys(_USES, False) | {
            "key_cert_sign": is_authority,
            "crl_sign": is_authority,
        }
        use["digital_signature"] = not is_authority
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=days[0]))
            .not_valid_after(now + datetime.timedelta(days=days[1]))
            .add_extension(constraints, critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(issuer, critical=False)
            .add_extension(x509.KeyUsage(**use), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def certify(self, name: str, days: tuple[float, float] = (-1, 1)) -> tuple[Path, Path]:
        """Return the files of a certificate and its key; `days` are its first and last day."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate, private = self._home / f"{name}.pem", self._home / f"{name}.key"
        certificate.write_bytes(
            self._signed(subject, key, days).public_bytes(serialization.Encoding.PEM)
        )
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, private

    def revoke(self, *certificates: Path) -> None:
        """Append a revocation list with these certificates to the authority's certificate."""
        now = datetime.datetime.now(datetime.UTC)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        revoked = x509.CertificateRevocationListBuilder(
            self._name, now, now + datetime.timedelta(days=1)
        ).add_extension(issuer, critical=False)
        for file in certificates:
            number = x509.load_pem_x509_certificate(file.read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder(number, now).build()
            revoked = revoked.add_revoked_certificate(entry)
        with self.file.open("ab") as end:
            signed = revoked.sign(self._key, hashes.SHA256())
            end.write(signed.public_bytes(serialization.Encoding.PEM))

    def client(self, *own: Path) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.file)
        if own:
            context.load_cert_chain(*own)
        return context
