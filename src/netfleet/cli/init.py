"""Write an experiment file with comments to start from; with --site, what sites with data of their own start from."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from netfleet.environment import missing_packages
from netfleet.errors import ConfigError

#: What to do next, and why.
Steps = Sequence[tuple[str, str]]

_RUN = (
    ("netfleet run {file}", "train; prints a table, writes curves.png and report.html"),
    ("netfleet run {file} --set algorithms.eta=0.02", "the same with another step size, beside it in runs/"),
    ("netfleet compare runs", "all runs so far, with intervals where there are several seeds"),
)
_PLAN = (
    ("netfleet run experiment.toml", "simulate the three sites, with the made-up rows"),
    ("netfleet plan experiment.toml --nodes nodes.toml --out plan", "a folder and a certificate for each site"),
    ("NETFLEET_POLICY=policy.toml netfleet up plan", "a trial on this machine; each site keeps to policy.toml"),
)
_INSTALL = ("pip install 'netfleet[sites]'", "what sites need and is not installed here")
_WRITTEN = """\
  experiment.toml  what is learnt and how; all sites agree on it
  nodes.toml       the sites and their addresses
  own_data.py      reads the rows of a site; all sites have the same copy
  policy.toml      what a site allows, whatever a plan says
  data/            made-up rows of north, east and south"""
_THEN = """\
Then with rows of your own: change own_data.py, [problem] and [contract] in
experiment.toml, and nodes.toml. Plan into a new folder, put own_data.py and
policy.toml into each site's folder there, and send it to the site, which reads
data/NAME.npz where it is started. docs/sites.md is the guide."""


def add(parser: argparse.ArgumentParser) -> None:
    words = "the new file (default: experiment.toml); with --site the folder of the new files (default: this one)"
    parser.add_argument("path", type=Path, nargs="?", metavar="FILE.toml", help=words)
    words = "write experiment.toml, nodes.toml, own_data.py, policy.toml and made-up rows for three sites"
    parser.add_argument("--site", action="store_true", help=words)
    words = "replace files that are there already, but no rows in data"
    parser.add_argument("--overwrite", action="store_true", help=words)


def run(options: argparse.Namespace) -> int:
    return (_sites if options.site else _experiment)(options.path, options.overwrite)


def _experiment(given: Path | None, overwrite: bool) -> int:
    from netfleet.templates.files import EXPERIMENT, experiment_text
    from netfleet.templates.writing import check_folder, write_new

    path = given or Path(EXPERIMENT)
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder; name a file in it: {path / EXPERIMENT} (or add --site)")
    if path.suffix != ".toml":
        raise ConfigError(f"an experiment is a file NAME.toml, got {str(path)!r}; try {path.name}.toml")
    check_folder(path.parent)
    write_new({path: experiment_text(path).encode()}, overwrite)
    print(f"wrote {path}")
    _print_steps([(command.format(file=shlex.quote(str(path))), why) for command, why in _RUN])
    return 0


def _sites(given: Path | None, overwrite: bool) -> int:
    from netfleet.templates.writing import check_folder, write_new

    folder = given or Path()
    if folder.suffix == ".toml":
        raise ConfigError(f"--site writes several files into a folder, got {str(folder)!r}; name a folder")
    check_folder(folder if folder.exists() else folder.parent)
    write_new(_site_files(folder, keep_rows=overwrite), overwrite)
    print(f"wrote into {folder if given else 'this folder'}:\n{_WRITTEN}")
    install = [_INSTALL] if missing_packages("grpc", "cryptography") else []
    _print_steps([*([(f"cd {shlex.quote(str(folder))}", "")] if given else []), *install, *_PLAN])
    print(f"\n{_THEN}")
    return 0


def _site_files(folder: Path, keep_rows: bool) -> dict[Path, bytes]:
    """What to write; rows that are there are those of a site, perhaps, and are kept."""
    from netfleet.templates.files import site_names, site_texts
    from netfleet.templates.made_up import made_up_rows

    texts = site_texts()
    rows = {folder / "data" / f"{name}.npz": made_up_rows(i) for i, name in enumerate(site_names(texts))}
    kept = {path for path in rows if keep_rows and path.exists()}
    written = {folder / name: text.encode() for name, text in texts.items()} | rows
    return {path: content for path, content in written.items() if path not in kept}


def _print_steps(steps: Steps) -> None:
    print("\nnext:")
    for command, why in steps:
        print(f"  {command}" + (f"\n      {why}" if why else ""))
