"""The certificates that a site accepts of each neighbour: `pins/NAME.pem` in its folder, one or more in each file.

`netfleet plan` writes them, and for the operator those of all sites: `certificates/NAME.pem` in its folder. A neighbour
without a file is pinned at its first request. `netfleet pin` adds one that the operator has renewed; a running site
reads the files again when they change.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509

from netfleet.errors import ConfigError
from netfleet.files import make_folder, write_atomically
from netfleet.sites.planning.certificates import (
    certificate_pem,
    check_issued,
    common_names,
    fingerprint,
    read_certificates,
)
from netfleet.sites.planning.folders import PINS_FOLDER, pins_folder

#: When a file was written, its size and its number: another file has another.
Stamp = tuple[int, int, int]


def stamp(path: Path) -> Stamp | None:
    """Which version of a file is there; None: none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Pins:
    """The pinned certificates of a site's neighbours, or of all sites in the operator's folder."""

    def __init__(self, folder: Path, authority: x509.Certificate) -> None:
        """Raises if one of the files cannot be used."""
        self._folder, self._authority = pins_folder(folder), authority
        self._read: dict[str, tuple[Stamp | None, list[x509.Certificate]]] = {}
        for path in sorted(self._folder.glob("*.pem")):
            self.of(path.stem)

    def of(self, name: str) -> Sequence[x509.Certificate]:
        """The certificates of a neighbour; none: it has not been seen yet."""
        path = self._path(name)
        now = stamp(path)
        if name not in self._read or self._read[name][0] != now:
            self._read[name] = now, [] if now is None else read_pins(path, name, self._authority)
        return self._read[name][1]

    def add(self, name: str, certificates: Iterable[x509.Certificate], replace: bool = False) -> None:
        """Accept these from now on, also after a crash; with `replace` no others."""
        kept = [] if replace else list(self.of(name))
        known = {fingerprint(each): each for each in [*kept, *certificates]}
        make_folder(self._folder)
        content = b"".join(map(certificate_pem, known.values()))
        write_atomically(self._path(name), lambda file: file.write(content))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.pem"


def read_pins(path: Path, name: str, authority: x509.Certificate) -> list[x509.Certificate]:
    """The certificates in a file, all of them this neighbour's and of this authority."""
    found = read_certificates(path)
    for certificate in found:
        check_pin(certificate, name, authority, str(path))
    return found


def check_pin(certificate: x509.Certificate, name: str, authority: x509.Certificate, where: str) -> None:
    """Raise unless a certificate is one that the authority has signed for this name."""
    names = common_names(certificate.subject)
    if names != [name]:
        raise ConfigError(f"{where} has a certificate of {', '.join(names) or 'nobody'}, expected {name}; remove it")
    try:
        check_issued(certificate, authority, where)
    except ConfigError as error:
        raise ConfigError(f"{error}; with a new authority, take {PINS_FOLDER}/ from the new plan too") from None
