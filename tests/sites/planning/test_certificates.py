"""Certificates: real TLS handshakes between the folders of a plan, and every file that must be refused."""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509.oid import NameOID

from netfleet import ConfigError
from netfleet.cli import main
from netfleet.sites.planning import certificates as tls
from netfleet.sites.planning.certificates import Authority, expiry_warning, load_identity

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
NODES = """
nodes = [
  { name = "hospital-a", address = "10.0.0.1:7400" },
  { name = "lab_b", address = "b.example.org:7400" },
  { name = "C", address = "[::1]:7400", request = "c.csr" },
]
"""


def plan(tmp_path: Path, *options: str, out: str = "out") -> int:
    (tmp_path / "e.toml").write_text("rounds = 1\ntopology = {kind = 'ring'}\nproblem = {kind = 'quadratics'}")
    (tmp_path / "nodes.toml").write_text(NODES)
    nodes = str(tmp_path / "nodes.toml")
    return main(["plan", str(tmp_path / "e.toml"), "--nodes", nodes, "--out", str(tmp_path / out), *options])


def subject(*names: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])


def request(key: Any, *names: str) -> bytes:
    """A request that asks for more than it will get."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject(*names))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("hospital-a")]), critical=False)
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, digest).public_bytes(Encoding.PEM)


def secret(path: Path, content: bytes) -> Path:
    path.touch(0o600)
    path.write_bytes(content)
    return path


def folder(path: Path, authority: Authority, certificate: x509.Certificate, key: Any) -> Path:
    path.mkdir()
    (path / "ca.pem").write_bytes(tls.certificate_pem(authority.certificate))
    (path / "node.pem").write_bytes(tls.certificate_pem(certificate))
    secret(path / "node.key", tls.key_pem(key))
    return path


@pytest.fixture
def out(tmp_path: Path, capsys: Any) -> Path:
    """A plan of three sites, the last of which brought a request; its key is put in place as its operator would."""
    key = tls.new_key()
    (tmp_path / "c.csr").write_bytes(request(key, "C"))
    assert plan(tmp_path) == 0
    assert not (tmp_path / "out" / "C" / "node.key").exists()
    assert "C: put the private key of the request beside it" in capsys.readouterr().out
    secret(tmp_path / "out" / "C" / "node.key", tls.key_pem(key))
    return tmp_path / "out"


# ---- handshakes ----


def context(path: Path, purpose: ssl.Purpose) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cafile=str(path / "ca.pem"))
    made.load_cert_chain(path / "node.pem", path / "node.key")
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    return made


def shake(server: Path, client: Path, name: str) -> tuple[str, str]:
    """A mutual handshake in memory, in which the client expects `name`; whom the client sees, and whom the server."""
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = context(server, ssl.Purpose.CLIENT_AUTH).wrap_bio(a, b, server_side=True)
    asking = context(client, ssl.Purpose.SERVER_AUTH).wrap_bio(b, a, server_hostname=name)
    waiting = [asking, serving]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    return seen(asking), seen(serving)


def seen(side: ssl.SSLObject) -> str:
    certificate: Any = side.getpeercert()
    return str(dict(pair for part in certificate["subject"] for pair in part)["commonName"])


def test_all_sites_know_each_other_by_name(out: Path) -> None:
    names = ("hospital-a", "lab_b", "C")
    for server in names:
        for client in (*names, "operator"):
            assert shake(out / server, out / client, server) == (server, client)
    assert shake(out / "hospital-a", out / "C", "10.0.0.1") == ("hospital-a", "C")
    assert shake(out / "lab_b", out / "C", "b.example.org") == ("lab_b", "C")


def test_a_site_does_not_pass_for_another(out: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake(out / "lab_b", out / "C", "hospital-a")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake(out / "C", out / "lab_b", "hospital-a")  # its request asked for that name


def test_the_operator_cannot_serve(out: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake(out / "operator", out / "C", "operator")


def test_a_site_cannot_sign_for_others(out: Path, tmp_path: Path) -> None:
    key, found = tls.new_key(), load_identity(out / "C", "C")
    site = Authority(x509.load_pem_x509_certificate(found.certificate), tls.read_key(out / "C" / "node.key"))
    forged = tls.issue(site, "hospital-a", "h", key.public_key(), days=1)
    chain = folder(tmp_path / "forged", site, forged, key)
    (chain / "node.pem").write_bytes(tls.certificate_pem(forged) + found.certificate)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"invalid CA certificate|self-signed|unable to get"):
        shake(chain, out / "lab_b", "hospital-a")


def stranger(tmp_path: Path, out: Path, case: str) -> Path:
    """A folder that claims to be hospital-a and trusts the plan's authority."""
    key, ours = tls.new_key(), tls.load_authority(out / "ca" / "ca.pem", out / "ca" / "ca.key")
    authority = tls.new_authority() if case == "another authority" else ours
    then = {"expired": NOW - 3 * DAY, "not yet valid": NOW + 3 * DAY}.get(case, NOW)
    certificate = tls.issue(authority, "hospital-a", "10.0.0.1", key.public_key(), 1, then)
    return folder(tmp_path / "stranger", ours, certificate, key)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("another authority", "unable to get|self-signed|signature"),
        ("expired", "expired"),
        ("not yet valid", "not yet"),
    ],
)
def test_strangers_are_refused_from_either_side(out: Path, tmp_path: Path, case: str, words: str) -> None:
    theirs = stranger(tmp_path, out, case)
    with pytest.raises(ssl.SSLCertVerificationError, match=words):
        shake(theirs, out / "lab_b", "hospital-a")
    with pytest.raises(ssl.SSLCertVerificationError, match=words):
        shake(out / "lab_b", theirs, "lab_b")
    with pytest.raises(ConfigError, match=r"is not signed by|expired on|is not valid before"):
        load_identity(theirs, "hospital-a")


# ---- what a certificate says ----


def test_a_certificate_says_what_it_is_for(out: Path) -> None:
    certificate = tls.read_certificate(out / "hospital-a" / "node.pem")
    of = {type(each.value): each for each in certificate.extensions}
    assert certificate.subject == subject("hospital-a")
    names = of[x509.SubjectAlternativeName].value
    assert names.get_values_for_type(x509.DNSName) == ["hospital-a"]  # type: ignore[attr-defined]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("10.0.0.1")]  # type: ignore[attr-defined]
    assert of[x509.BasicConstraints].value == x509.BasicConstraints(ca=False, path_length=None)
    assert {usage.dotted_string for usage in of[x509.ExtendedKeyUsage].value} == {  # type: ignore[attr-defined]
        "1.3.6.1.5.5.7.3.1",
        "1.3.6.1.5.5.7.3.2",
    }
    assert timedelta(365) < certificate.not_valid_after_utc - certificate.not_valid_before_utc < timedelta(366)
    root = tls.read_certificate(out / "ca" / "ca.pem")
    constraints = root.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)


def test_of_a_request_only_the_key_is_taken(out: Path, tmp_path: Path) -> None:
    certificate = tls.read_certificate(out / "C" / "node.pem")
    asked = x509.load_pem_x509_csr((tmp_path / "c.csr").read_bytes())
    assert certificate.public_key() == asked.public_key()
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["C"]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_name_that_is_also_the_host_is_said_once() -> None:
    authority = tls.new_authority()
    certificate = tls.issue(authority, "a", "a", tls.new_key().public_key())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a"]


# ---- requests ----

ROGUE = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"
BAD_REQUESTS: dict[str, tuple[bytes, str]] = {
    "wrong name": (
        request(tls.new_key(), "hospital-a"),
        "is for 'hospital-a', expected 'C'; the site must make it again",
    ),
    "no name": (request(tls.new_key()), "is for no name, expected 'C'"),
    "two names": (request(tls.new_key(), "C", "hospital-a"), "is for 'C', 'hospital-a', expected 'C'"),
    "not PEM": (b"hello", "is not a PEM file of a certificate request"),
    "not a request": (ROGUE.encode(), "is not a PEM file of a certificate request"),
    "a key": (tls.key_pem(tls.new_key()), "is not a PEM file of a certificate request"),
    "ed25519": (
        request(ed25519.Ed25519PrivateKey.generate(), "C"),
        "a key of another kind .*expected an EC key on P-256",
    ),
    "P-521": (request(ec.generate_private_key(ec.SECP521R1()), "C"), "a key of another kind"),
    "short RSA": (request(rsa.generate_private_key(65537, 1024), "C"), "a key of another kind"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests_are_refused(case: str, tmp_path: Path, capsys: Any) -> None:
    content, words = BAD_REQUESTS[case]
    path = tmp_path / "c.csr"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        tls.read_request(path, "C")
    assert plan(tmp_path) == 2
    assert not (tmp_path / "out").exists()
    assert str(path) in capsys.readouterr().err


def test_a_request_signed_with_another_key_is_refused(tmp_path: Path) -> None:
    """The name's bytes are changed after signing."""
    der = x509.load_pem_x509_csr(request(tls.new_key(), "X")).public_bytes(Encoding.DER)
    swapped = x509.load_der_x509_csr(der.replace(b"\x0c\x01X", b"\x0c\x01C"))
    (tmp_path / "c.csr").write_bytes(swapped.public_bytes(Encoding.PEM))
    with pytest.raises(ConfigError, match="has a signature that does not match its key"):
        tls.read_request(tmp_path / "c.csr", "C")


def test_no_garbled_request_gets_through(tmp_path: Path) -> None:
    path, good = tmp_path / "c.csr", x509.load_pem_x509_csr(request(tls.new_key(), "C")).public_bytes(Encoding.DER)
    for place in range(len(good)):
        der = good[:place] + bytes([good[place] ^ 0x41]) + good[place + 1 :]
        path.write_bytes(ssl.DER_cert_to_PEM_cert(der).replace("CERTIFICATE", "CERTIFICATE REQUEST").encode())
        with pytest.raises(ConfigError):
            tls.read_request(path, "C")


def test_no_garbled_certificate_gets_through(out: Path) -> None:
    path = out / "lab_b" / "node.pem"
    good = tls.read_certificate(path).public_bytes(Encoding.DER)
    for place in range(len(good)):
        der = good[:place] + bytes([good[place] ^ 0x41]) + good[place + 1 :]
        path.write_text(ssl.DER_cert_to_PEM_cert(der))
        with pytest.raises(ConfigError):
            load_identity(out / "lab_b", "lab_b")


# ---- given authorities ----


def given(tmp_path: Path, authority: Authority) -> list[str]:
    (tmp_path / "root.pem").write_bytes(tls.certificate_pem(authority.certificate))
    secret(tmp_path / "root.key", tls.key_pem(authority.key))
    return ["--ca-cert", str(tmp_path / "root.pem"), "--ca-key", str(tmp_path / "root.key")]


def rsa_root() -> Authority:
    """A root as openssl makes it, without a keyUsage."""
    key = rsa.generate_private_key(65537, 2048)
    builder = x509.CertificateBuilder().subject_name(subject("Company root")).issuer_name(subject("Company root"))
    builder = builder.public_key(key.public_key()).serial_number(1).not_valid_before(NOW - DAY)
    builder = builder.not_valid_after(NOW + 400 * DAY)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Authority(builder.sign(key, hashes.SHA256()), key)


def test_a_given_authority_signs_and_its_key_is_not_copied(tmp_path: Path, capsys: Any) -> None:
    authority, key = rsa_root(), tls.new_key()
    options = given(tmp_path, authority)
    (tmp_path / "c.csr").write_bytes(request(key, "C"))
    assert plan(tmp_path, *options, "--days", "30") == 0
    out = tmp_path / "out"
    assert not (out / "ca").exists()
    assert "offline" not in capsys.readouterr().out
    assert (out / "lab_b" / "ca.pem").read_bytes() == (tmp_path / "root.pem").read_bytes()
    secret_bytes = tls.key_pem(authority.key)
    assert all(path.read_bytes() != secret_bytes for path in out.rglob("*") if path.is_file())
    found = load_identity(out / "lab_b", "lab_b")
    assert abs(found.expires - NOW - 30 * DAY) < DAY
    tls.check_issued(x509.load_pem_x509_certificate(found.certificate), authority.certificate, "it")
    assert plan(tmp_path, *options, "--days", "500", out="other") == 2
    assert "the authority's certificate expires in 399 days, before 500 days; use --days 399" in capsys.readouterr().err


def test_authorities_that_are_none_are_refused(tmp_path: Path) -> None:
    root, key = tls.new_authority(), tls.new_key()
    path, private = tmp_path / "root.pem", tmp_path / "root.key"

    def refuse(certificate: x509.Certificate, with_key: Any, words: str, now: datetime | None = None) -> None:
        given(tmp_path, Authority(certificate, with_key))
        with pytest.raises(ConfigError, match=words):
            tls.load_authority(path, private, now)

    refuse(root.certificate, key, "the private key is not the certificate's")
    refuse(tls.issue(root, "a", "h", key.public_key()), key, "must be a root, is not signed by")
    refuse(root.certificate, root.key, "expired on", NOW + 4000 * DAY)
    refuse(root.certificate, root.key, "is not valid before", NOW - DAY)
    alone = x509.CertificateBuilder().subject_name(subject("x")).issuer_name(subject("x")).public_key(key.public_key())
    alone = alone.serial_number(1).not_valid_before(NOW - DAY).not_valid_after(NOW + DAY)
    refuse(alone.sign(key, hashes.SHA256()), key, "may not sign certificates; expected an authority")


# ---- files ----


@pytest.mark.parametrize("file", ["ca.pem", "node.pem", "node.key"])
def test_files_that_are_missing_or_something_else_are_explained(out: Path, file: str) -> None:
    path = out / "lab_b" / file
    path.write_bytes(b"-----BEGIN NOTHING-----\n")
    with pytest.raises(ConfigError, match=f"{file} is not a PEM file of a"):
        load_identity(out / "lab_b", "lab_b")
    path.unlink()
    with pytest.raises(ConfigError, match=f"cannot read .*{file}: No such file|{file} is missing; put the private key"):
        load_identity(out / "lab_b", "lab_b")


def test_files_of_two_sites_or_plans_are_told_apart(out: Path) -> None:
    ours, others = out / "hospital-a", out / "lab_b"
    with pytest.raises(ConfigError, match="is the certificate of lab_b, expected hospital-a"):
        load_identity(others, "hospital-a")
    key = (ours / "node.key").read_bytes()
    (ours / "node.key").write_bytes((others / "node.key").read_bytes())
    with pytest.raises(ConfigError, match="the private key is not the certificate's"):
        load_identity(ours, "hospital-a")
    (ours / "node.key").write_bytes(key)
    (ours / "ca.pem").write_bytes(tls.certificate_pem(tls.new_authority().certificate))
    with pytest.raises(
        ConfigError, match="is not signed by the authority CN=netfleet CA; take both from the same plan"
    ):
        load_identity(ours, "hospital-a")


def test_a_key_that_others_can_read_or_that_needs_a_passphrase_is_refused(out: Path) -> None:
    path = out / "lab_b" / "node.key"
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="every user of this machine can reach; chmod 600"):
        load_identity(out / "lab_b", "lab_b")
    path.chmod(0o600)
    locked = tls.new_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    path.write_bytes(locked)
    with pytest.raises(ConfigError, match="not a PEM file of a private key without a passphrase"):
        load_identity(out / "lab_b", "lab_b")


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (timedelta(days=15), None),
        (timedelta(days=13, hours=12), "expires on .* in 13 days; make a new one"),
        (timedelta(hours=3), "in 0 days"),
        (timedelta(hours=-1), "expired on"),
    ],
)
def test_the_end_of_a_certificate_is_spoken_of_in_time(out: Path, left: timedelta, words: str | None) -> None:
    found = load_identity(out / "lab_b", "lab_b")
    said = expiry_warning("the certificate of lab_b", found.expires, found.expires - left)
    assert (said is None) if words is None else re.search(words, str(said))
