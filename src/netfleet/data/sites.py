"""Files that each site has for itself: `{site}` in a path stands for the site's name.

At a real site netfleet sets the environment variable NETFLEET_SITE, and only that site's file is read. Without it, in
the simulator, the files of all sites are.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from netfleet.errors import ConfigError, DataError
from netfleet.registry import Spec, split

#: The environment variable that has the name of the site that this process is.
SITE_VARIABLE = "NETFLEET_SITE"
PLACE = "{site}"  # in a path


def this_site(environ: Mapping[str, str] = os.environ) -> str | None:
    """The name of the site that this process is; None in the simulator."""
    return environ.get(SITE_VARIABLE) or None


@contextmanager
def as_site(name: str) -> Iterator[None]:
    """Within the context this process is the site with this name."""
    before = os.environ.get(SITE_VARIABLE)
    os.environ[SITE_VARIABLE] = name
    try:
        yield
    finally:
        del os.environ[SITE_VARIABLE]
        os.environ.update({} if before is None else {SITE_VARIABLE: before})


def shown_value(text: str) -> str:
    """The text of somebody's value as an error shows it; at a real site it is not shown, because logs travel."""
    return text if this_site() is None else "a value (not shown)"


def holds_own_data(spec: Spec) -> bool:
    """Whether a site loads only its own rows from a data source, so that nobody else knows them or their number."""
    kind, parameters = split(spec, "data source")
    return ":" in kind or PLACE in str(parameters.get("path"))


def with_sites(spec: Spec, names: Sequence[str]) -> Spec:
    """A specification that lists these sites, if each has a file of its own; raises if it lists others."""
    kind, parameters = split(spec, "data source")
    if PLACE not in str(parameters.get("path")) or ":" in kind:
        return spec
    listed = parameters.get("sites")
    if isinstance(listed, list | tuple) and list(listed) != list(names):
        ours, theirs = ", ".join(map(str, listed)), ", ".join(names)
        raise ConfigError(f"the data has the sites {ours}, but the [[nodes]] are {theirs}; give both in the same order")
    return {"kind": kind, **parameters, "sites": list(names)}


def site_files(path: str, sites: Sequence[str] | None, environ: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """The file of each site: of one at a real site, of all that are listed in the simulator."""
    own = this_site(environ)
    if own is None and sites is None:
        raise ConfigError(f'path = "{path}" has a file for each site, but no site is known; add sites = ["…", …]')
    names = [own] if own is not None else list(sites or ())
    return {name: find(path.replace(PLACE, name), environ) for name in names}


def check_sites(sites: Sequence[str] | None) -> None:
    """Raise unless the names of the sites can be used."""
    names = [] if sites is None else list(sites)
    if sites is not None and not names:
        raise ConfigError("sites is an empty list; name each site, or leave sites out")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"sites has {twice[0]!r} twice; name each site once")
    if wrong := [name for name in names if not name or "/" in name or "\\" in name]:
        raise ConfigError(f"sites has {wrong[0]!r}, which is no name for a file; use letters, digits, - and _")


def find(path: str, environ: Mapping[str, str] = os.environ) -> Path:
    """A file: relative paths are looked for in the current folder and then in NETFLEET_DATA."""
    given, shared = Path(path).expanduser(), environ.get("NETFLEET_DATA")
    places = [given] if given.is_absolute() or not shared else [given, Path(shared).expanduser() / given]
    for place in places:
        if place.is_file():
            return place
    where = str(given) if given.is_absolute() else f"{given} in the current folder ({Path.cwd()})"
    more = f" or in NETFLEET_DATA ({shared})" if len(places) > 1 else ""
    cure = "" if shared or given.is_absolute() else ", or set NETFLEET_DATA to the folder that has it"
    raise DataError(f"there is no file {where}{more}; put it there{cure}, or correct path")
