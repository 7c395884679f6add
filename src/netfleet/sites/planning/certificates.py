"""Issues, reads and checks the certificates by which sites identify each other.

One authority signs for every site of a plan, by name. A certificate has CN = the site's name; its alternative names are
that name and the host that the others dial. A client checks the name, not the host: sites may share a machine, and one
may move. The operator's certificate is for clients only. Of a site's certificate request only the public key is used.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from netfleet.errors import ConfigError

T = TypeVar("T")
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
OPERATOR = "operator"
#: Days for which a fresh authority is valid, and so the maximum for a certificate.
LIFE = 3650
#: How long before its expiry a certificate is warned about.
SOON = timedelta(days=14)
_LEEWAY = timedelta(hours=1)  # clocks of sites differ
_BAD_X509 = (x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
MALFORMED = (ValueError, TypeError, UnsupportedAlgorithm, *_BAD_X509)
_KINDS = (
    "expected an EC key on P-256 or P-384 or an RSA key of 2048 bits or more; make one with "
    "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"
)


class Identity(NamedTuple):
    """A name with its certificate and key, and the authority's certificate, in PEM."""

    name: str
    ca: bytes
    certificate: bytes
    key: bytes
    expires: datetime


class Authority(NamedTuple):
    """Signs the sites' certificates."""

    certificate: x509.Certificate
    key: PrivateKey


def new_key() -> PrivateKey:
    """A private key on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def new_authority(name: str = "netfleet CA") -> Authority:
    """A fresh self-signed authority; it may sign sites but no further authorities."""
    key, subject = new_key(), _named(name)
    builder = _builder(subject, subject, key.public_key(), key.public_key(), LIFE + 1, datetime.now(UTC), signs=True)
    return Authority(builder.sign(key, hashes.SHA256()), key)


def load_authority(certificate: Path, key: Path, now: datetime | None = None) -> Authority:
    """The operator's own authority; it must be a root, because sites are given no other certificate to trust."""
    found = Authority(read_certificate(certificate), read_key(key))
    check_belongs(found.certificate, found.key, f"{certificate} and {key}")
    check_time(found.certificate, str(certificate), now)
    check_issued(found.certificate, found.certificate, f"{certificate}, which must be a root,")
    if not _may_sign(found.certificate):
        raise ConfigError(
            f"{certificate} may not sign certificates; expected an authority with basicConstraints CA:TRUE and, if "
            f"it has a keyUsage, keyCertSign; leave --ca-cert and --ca-key out for a fresh one"
        )
    return found


def issue(
    authority: Authority, name: str, host: str, key: PublicKey, days: int = 365, now: datetime | None = None
) -> x509.Certificate:
    """A site's certificate, as a server and as a client; the operator's cannot be used as a server."""
    now = now or datetime.now(UTC)
    if not 1 <= days <= LIFE:
        raise ConfigError(f"a certificate must be valid for 1 to {LIFE} days, got {days}; a year (365) is the default")
    left = (authority.certificate.not_valid_after_utc - now).days
    if days > left:
        raise ConfigError(f"the authority's certificate expires in {left} days, before {days} days; use --days {left}")
    serves, signer = name != OPERATOR, authority.key
    purposes = [*[ExtendedKeyUsageOID.SERVER_AUTH] * serves, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _builder(_named(name), authority.certificate.subject, key, signer.public_key(), days, now, signs=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if serves:
        names = [_alternative(each) for each in dict.fromkeys((name, host or name))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def pem_of(der: bytes) -> bytes:
    """A certificate in DER as PEM."""
    return certificate_pem(x509.load_der_x509_certificate(der))


def first_certificate(pem: bytes) -> bytes:
    """The first of some certificates in PEM."""
    return certificate_pem(x509.load_pem_x509_certificates(pem)[0])


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, as `openssl x509 -fingerprint -sha256` prints it, without colons."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def public_key_bytes(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def key_pem(key: PrivateKey) -> bytes:
    """A private key as PEM, without a passphrase: a site must be able to start unattended."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, signer: PublicKey, days: int, now: datetime, *, signs: bool
) -> x509.CertificateBuilder:
    """`signs` says whether the certificate is an authority's."""
    unused = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only"
    never = dict.fromkeys(unused.split(), False)
    usage = x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **never)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    builder = builder.not_valid_before(now - _LEEWAY).not_valid_after(now + timedelta(days=days))
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(signs, path_length=0 if signs else None), critical=True)
    return builder.add_extension(usage, critical=True)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _may_sign(certificate: x509.Certificate) -> bool:
    found = {type(each.value): each.value for each in certificate.extensions}
    constraints, usage = found.get(x509.BasicConstraints), found.get(x509.KeyUsage)
    is_authority = isinstance(constraints, x509.BasicConstraints) and constraints.ca
    return is_authority and (not isinstance(usage, x509.KeyUsage) or usage.key_cert_sign)


# ---- from files ----


def read_certificate(path: Path) -> x509.Certificate:
    """The first certificate of a PEM file."""
    return _parse(path, _certificate, "a certificate")


def read_certificates(path: Path) -> list[x509.Certificate]:
    """All certificates of a PEM file, in their order."""
    return _parse(path, _certificates, "certificates")


def read_key(path: Path) -> PrivateKey:
    """A private key that other users of the machine cannot read, of a kind that every TLS library accepts."""
    key = _parse(path, lambda pem: load_pem_private_key(pem, password=None), "a private key without a passphrase")
    if path.stat().st_mode & 0o007:
        raise ConfigError(f"{path} is a private key that every user of this machine can reach; chmod 600 {path}")
    if not isinstance(key, PrivateKey):
        raise ConfigError(f"{path} is a {type(key).__name__}, {_KINDS}")
    check_kind(key.public_key(), path)
    return key


def read_request(path: Path, name: str) -> PublicKey:
    """The public key of a site's certificate request; the request must be signed with it and name the site."""
    names, key, signed = _parse(path, _request, "a certificate request")
    if not signed:
        raise ConfigError(f"{path} has a signature that does not match its key; site {name!r} must make it again")
    if names != [name]:
        raise ConfigError(
            f"{path} is for {', '.join(map(repr, names)) or 'no name'}, expected {name!r}; the site must make it "
            f"again: openssl req -new -key node.key -subj /CN={name} -out {path.name}"
        )
    return check_kind(key, path)


def common_names(name: x509.Name) -> list[str]:
    """Every CN of a subject; our certificates have one, the site's name."""
    return [str(attribute.value) for attribute in name.get_attributes_for_oid(NameOID.COMMON_NAME)]


def check_kind(key: object, path: Path | str) -> PublicKey:
    """The key, if every TLS library accepts its kind; else raise."""
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        return key
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= 2048:
        return key
    raise ConfigError(f"{path} has a key of another kind ({type(key).__name__.lstrip('_')}), {_KINDS}")


def check_belongs(certificate: x509.Certificate, key: PrivateKey, where: str) -> None:
    if certificate.public_key() != key.public_key():
        raise ConfigError(f"{where}: the private key is not the certificate's; take both from the same plan or request")


def check_issued(certificate: x509.Certificate, authority: x509.Certificate, where: str) -> None:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise ConfigError(
            f"{where} is not signed by the authority {authority.subject.rfc4514_string()}; take both from the same plan"
        ) from None


def check_time(certificate: x509.Certificate, where: str, now: datetime | None = None) -> None:
    now = now or datetime.now(UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        raise ConfigError(f"{where} expired on {last:%Y-%m-%d %H:%M} UTC; make a new one with the same authority")
    if now < first:
        raise ConfigError(
            f"{where} is not valid before {first:%Y-%m-%d %H:%M} UTC, but it is {now:%Y-%m-%d %H:%M}; set the clock"
        )


def read_bytes(path: Path) -> bytes:
    """The content of a small file that must exist."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path") from None


def _certificate(pem: bytes) -> x509.Certificate:
    """Parse every part that is used later, so that a malformed one is found here."""
    certificate = x509.load_pem_x509_certificate(pem)
    certificate.public_key(), certificate.subject, certificate.extensions
    return certificate


def _certificates(pem: bytes) -> list[x509.Certificate]:
    return [_certificate(certificate_pem(each)) for each in x509.load_pem_x509_certificates(pem)]


def _request(pem: bytes) -> tuple[list[str], object, bool]:
    request = x509.load_pem_x509_csr(pem)
    return common_names(request.subject), request.public_key(), request.is_signature_valid


def _parse(path: Path, load: Callable[[bytes], T], what: str) -> T:
    pem = read_bytes(path)
    try:
        return load(pem)
    except MALFORMED as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{path} is not a PEM file of {what} ({reason})") from None


def load_identity(folder: Path, name: str, now: datetime | None = None) -> Identity:
    """`ca.pem`, `node.pem` and `node.key` of a folder; they must belong together and to the name, and be valid."""
    ca, node, key = (folder / file for file in ("ca.pem", "node.pem", "node.key"))
    authority, certificate = read_certificate(ca), read_certificate(node)
    if not key.exists():
        raise ConfigError(f"{key} is missing; put the private key there with which the certificate request was made")
    check_belongs(certificate, read_key(key), f"{node} and {key}")
    check_issued(certificate, authority, str(node))
    for each, path in ((authority, ca), (certificate, node)):
        check_time(each, str(path), now)
    names = common_names(certificate.subject)
    if names != [name]:
        raise ConfigError(
            f"{node} is the certificate of {', '.join(names)}, expected {name}; use the one made for this site"
        )
    expires = min(authority.not_valid_after_utc, certificate.not_valid_after_utc)
    return Identity(name, read_bytes(ca), read_bytes(node), read_bytes(key), expires)


def expiry_warning(what: str, expires: datetime, now: datetime | None = None) -> str | None:
    """A sentence for the operator if a certificate has expired or will within `SOON`."""
    now = now or datetime.now(UTC)
    if expires - now > SOON:
        return None
    when = f"{expires:%Y-%m-%d %H:%M} UTC"
    said = f"expired on {when}" if now > expires else f"expires on {when}, in {(expires - now).days} days"
    return f"{what} {said}; make a new one before the neighbours reject it"
