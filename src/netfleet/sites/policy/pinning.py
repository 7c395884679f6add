"""What the commands `netfleet pin` and `netfleet revoke` do."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from netfleet.errors import ConfigError
from netfleet.files import write_atomically
from netfleet.sites.planning.certificates import (
    OPERATOR,
    Authority,
    check_issued,
    common_names,
    fingerprint,
    read_certificate,
    read_certificates,
)
from netfleet.sites.planning.folders import (
    CERTIFICATES_FOLDER,
    REVOKED_FILE,
    SITE_FILE,
    names_of_known,
)
from netfleet.sites.policy.pins import Pins, check_pin
from netfleet.sites.policy.revocation import RevocationList, read_list, revoke


def pin(folder: Path, files: Sequence[Path], replace: bool) -> Iterator[str]:
    """Accept the certificates in these files; a line for each. Nothing is written if one is wrong."""
    authority, names = read_certificate(folder / "ca.pem"), names_of_known(folder)
    found: dict[str, list[x509.Certificate]] = {}
    for path in files:
        for certificate in read_certificates(path):
            name = ", ".join(common_names(certificate.subject))
            if name not in names:
                raise ConfigError(f"{path} is a certificate of {name}, expected one of {', '.join(names)}")
            check_pin(certificate, name, authority, str(path))
            found.setdefault(name, []).append(certificate)
    pins = Pins(folder, authority)
    for name, certificates in found.items():
        pins.add(name, certificates, replace)
        yield f"{name}: accepts {', '.join(map(fingerprint, certificates))}"


def pin_lines(folder: Path) -> Iterator[str]:
    """The certificates that a site accepts, one in each line."""
    authority = read_certificate(folder / "ca.pem")
    pins, revoked = Pins(folder, authority), read_list(folder / REVOKED_FILE, authority)
    for name in names_of_known(folder):
        if not pins.of(name):
            yield f"{name}  not pinned yet; its first certificate counts"
        for certificate in pins.of(name):
            entry = revoked.entries.get(certificate.serial_number)
            state = f"until {certificate.not_valid_after_utc:%Y-%m-%d}" if entry is None else str(entry)
            yield f"{name}  {fingerprint(certificate)}  {state}"


def revoke_site(
    plan: Path,
    name: str,
    files: Sequence[Path],
    why: str,
    authority: Authority,
    list_path: Path,
    evict: bool = False,
) -> RevocationList:
    """Revoke the certificates of a site, those in the plan and in these files, and write the list wherever it belongs.

    `list_path` has the list so far, and gets the new one; so does the folder of every site that is in the plan's. With
    `evict` the list says that the site is out of the training for good.
    """
    kept = plan / OPERATOR / "node.pem" if name == OPERATOR else plan / OPERATOR / CERTIFICATES_FOLDER / f"{name}.pem"
    places = [path for path in (kept, plan / name / "node.pem") if path.exists()] + list(files)
    found = {fingerprint(each): each for path in places for each in _issued(path, name, authority)}
    if not found:
        raise ConfigError(f"{plan} has no certificate of {name}; give it with --certificate FILE.pem")
    before, now = read_list(list_path, authority.certificate), datetime.now(UTC).replace(microsecond=0)
    new = revoke(authority, before, found.values(), why, now, evict)
    folders = [path.parent for path in sorted(plan.glob(f"*/{SITE_FILE}"))]
    for path in [list_path, *(folder / REVOKED_FILE for folder in folders)]:
        write_atomically(path, lambda file: file.write(new.pem))
    return new


def _issued(path: Path, name: str, authority: Authority) -> list[x509.Certificate]:
    found = read_certificates(path)
    for certificate in found:
        names = common_names(certificate.subject)
        if names != [name]:
            raise ConfigError(f"{path} is a certificate of {', '.join(names)}, expected {name}; check the file")
        check_issued(certificate, authority.certificate, str(path))
    return found
