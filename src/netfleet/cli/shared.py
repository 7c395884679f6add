"""What several commands share: options, output folders, messages, and checks before a command starts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from netfleet.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from rich.console import Console

    from netfleet.runs.config import Experiment
    from netfleet.runs.history import At
    from netfleet.sites.planning.certificates import Authority


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """FILE.toml, which may be left out, and --set."""
    parser.add_argument("file", nargs="?", metavar="FILE.toml", help="the experiment (default: the embedded demo)")
    words = "change a value of the file, for example --set rounds=50 --set topology.workers=8; "
    add_set(parser, words + "--set algorithms.eta=0.1 changes all algorithms, --set 'algorithms[LABEL].eta=0.1' one")


def add_set(parser: argparse.ArgumentParser, words: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=words)


def add_metric(parser: argparse.ArgumentParser) -> None:
    """Which column of the histories counts, and where."""
    words = "a column of the histories (default: accuracy, or loss where there is none)"
    parser.add_argument("--metric", metavar="COLUMN", help=words)
    words = "which value counts: last, best, or a round's number (default: last)"
    parser.add_argument("--at", default="last", metavar="WHEN", help=words)


def parse_at(text: str) -> At:
    if text in ("last", "best"):
        return "last" if text == "last" else "best"
    if not text.isdecimal():
        raise ConfigError(f"--at takes last, best or the number of a round, got {text!r}")
    return int(text)


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help='"cpu", "cuda", "cuda:1", …')
    words = "number of cores (default: all; results do not depend on it)"
    parser.add_argument("--threads", type=int, metavar="N", help=words)


def load_local(options: argparse.Namespace, command: str) -> Experiment:
    """The experiment of a command that runs in one process."""
    from netfleet.runs.config import load_experiment

    experiment = load_experiment(options.file, options.set)
    if experiment.engine.kind == "distributed":
        cause = f'netfleet {command} runs in one process, but the file says engine.kind = "distributed"'
        raise ConfigError(f"{cause}; add --set engine.kind=simulator")
    return experiment


def output_folder(out: Path | None, experiment: Experiment, prefix: str = "") -> Path:
    """--out, or a folder below runs/ that is named after the experiment."""
    return out if out is not None else default_folder(experiment.name, experiment.hash, prefix)


def default_folder(title: str, content: str, prefix: str = "") -> Path:
    """A folder below runs/ with the title of an experiment and the hash of its content."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in title.lower()).strip("-.")
    if not name:
        raise ConfigError(f"name = {title!r} has no letter or digit to name a folder by; give --out")
    return Path("runs") / f"{prefix}{name}-{content[:8]}"


def say_wrote(console: Console, path: Path) -> None:
    console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def resumable(next_step: str) -> Iterator[None]:
    """Within the context, an error that a full disk causes also says how to resume."""
    try:
        yield
    except StorageError as error:
        told = StorageError(f"{error}. {next_step}")
        told.shared = error.shared
        raise told from None


def interrupted(next_step: str = "") -> int:
    print("netfleet: interrupted" + (f"; {next_step}" if next_step else ""), file=sys.stderr)
    return 130


def use_checkout(folder: str) -> None:
    """Make a folder of the repository's checkout importable: benchmarks and reproduction are not in the wheel."""
    places = [Path.cwd(), Path(__file__).resolve().parents[3]]
    root = next((place for place in places if (place / folder / "__init__.py").is_file()), None)
    if root is None:
        place = f"there is no {folder}/ in {Path.cwd()} or beside the installed package"
        advice = "clone the repository and run the command in it"
        raise ConfigError(f"this command needs a checkout of netfleet's repository, but {place}; {advice}")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


def silence_grpc() -> None:
    """Keep gRPC's own messages about failed handshakes off the terminal: the commands report the reasons."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def add_policy(parser: argparse.ArgumentParser) -> None:
    words = "the site's policy (default: NETFLEET_POLICY, or policy.toml in DIR if it is there)"
    parser.add_argument("--policy", type=Path, metavar="FILE.toml", help=words)


def add_authority(parser: argparse.ArgumentParser, default: str) -> None:
    add_authority_files(parser, default)
    parser.add_argument("--days", type=int, default=365, metavar="N", help="days of validity (%(default)s)")


def add_authority_files(parser: argparse.ArgumentParser, default: str) -> None:
    words = f"certificate of a root authority (default: {default})"
    parser.add_argument("--ca-cert", type=Path, metavar="FILE.pem", help=words)
    parser.add_argument("--ca-key", type=Path, metavar="FILE.key", help="the authority's private key; never copied")


def load_authority(certificate: Path | None, key: Path | None) -> Authority | None:
    """The authority of --ca-cert and --ca-key, if given."""
    from netfleet.sites.planning import certificates

    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("an authority of your own is a certificate and its key; give both --ca-cert and --ca-key")
    return certificates.load_authority(certificate, key)


def plan_authority(folder: Path, certificate: Path | None, key: Path | None) -> Authority:
    """The authority of --ca-cert and --ca-key, or else the one that netfleet plan has put into the folder."""
    given, own = load_authority(certificate, key), folder / "ca"
    found = given if given is not None else load_authority(own / "ca.pem", own / "ca.key")
    assert found is not None
    return found


def add_revocation(parser: argparse.ArgumentParser, name: str) -> None:
    """The options of what the operator says by the list of revoked certificates; `name` is the help for NAME."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder that netfleet plan made")
    parser.add_argument("name", metavar="NAME", help=name)
    parser.add_argument("--why", required=True, metavar="TEXT", help="the reason, which every site logs")
    words = "further certificates of this site, such as one that was renewed in another folder"
    parser.add_argument("--certificate", type=Path, action="append", default=[], metavar="FILE.pem", help=words)
    words = "the list so far, which gets the new certificates too (default: DIR/operator/revoked.pem)"
    parser.add_argument("--list", type=Path, metavar="FILE.pem", help=words)
    add_authority_files(parser, "DIR/ca")
