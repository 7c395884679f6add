"""What a folder holds, and so what its page shows."""

from pathlib import Path
from typing import Protocol

from netfleet.environment import need_packages
from netfleet.errors import ConfigError
from netfleet.watch.news import Source
from netfleet.watch.run_source import RunSource

#: What only a site's, the operator's or a plan's folder has.
_OF_SITES = ("site.toml", "plan.toml", "operator/plan.toml")


class FolderSource(Source, Protocol):
    @property
    def folder(self) -> Path: ...


def source_of(folder: Path | None, *, expected: bool = False) -> FolderSource:
    """The source of a folder's page; without a folder, that of the newest results below runs/.

    The folder need not be there yet if it is `expected`.
    """
    if folder is None:
        folder = _newest()
    if not folder.is_dir() and not expected:
        what = "is a file" if folder.exists() else "does not exist"
        advice = "give the folder of results (netfleet run --out DIR), of a plan or of a site"
        raise ConfigError(f"{folder} {what}; {advice}")
    if any((folder / name).is_file() for name in _OF_SITES):
        need_packages("grpc", "cryptography")
        from netfleet.watch.site_source import SiteSource

        return SiteSource(folder)
    return RunSource(folder)


def _newest() -> Path:
    places = [place for place in Path("runs").glob("*") if place.is_dir()]
    if not places:
        raise ConfigError("there is no folder below runs/ here; give the folder of results, of a plan or of a site")
    return max(places, key=lambda place: place.stat().st_mtime)
