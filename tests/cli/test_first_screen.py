"""What `netfleet` alone shows, and completion in the shell: quick, and with commands that there are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from netfleet.cli import first_screen, main, make_parser

HEAVY = ("torch", "numpy", "rich", "grpc", "matplotlib", "networkx", "cryptography")


def test_netfleet_alone_shows_ten_lines_that_fit_a_terminal(capsys: Any) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) < 80


def test_every_command_on_the_first_screen_is_one() -> None:
    shown = re.findall(r"^  netfleet (.*?)  ", first_screen.TEXT, flags=re.MULTILINE)
    assert len(shown) == 6
    for words in shown:
        if "--help" in words:
            with pytest.raises(SystemExit, match="0"):
                make_parser().parse_args(words.split())
        else:
            assert make_parser().parse_args(words.split()).command is not first_screen.run


@pytest.mark.parametrize("arguments", [["--nothing"], ["nothing"]])
def test_what_is_no_command_is_refused(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "nothing" in capsys.readouterr().err


def test_first_screen_and_init_import_nothing_heavy(tmp_path: Path) -> None:
    code = f"""
import sys
from netfleet.cli import main
assert main([]) == main(["init", "e.toml"]) == 0
loaded = [name for name in {HEAVY} if name in sys.modules]
assert not loaded, loaded
assert main(["init", "--site"]) == 0
assert "torch" not in sys.modules  # made-up rows need numpy
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- completion ----

#: Calls the completion of a line's last word as bash does, and prints what it offers.
BASH = r"""
eval "$1"; shift
for line; do
  IFS='|' read -ra COMP_WORDS <<< "$line|."
  unset 'COMP_WORDS[-1]'
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _shtab_netfleet netfleet "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
  echo "${COMPREPLY[*]}"
done
"""


def test_bash_completes_commands_options_values_and_files(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("shtab", reason="pip install 'netfleet[completion]'")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    (tmp_path / "ring.toml").touch()
    expected = {
        "netfleet|in": "init",
        "netfleet|rec": "receipts",
        "netfleet|receipts|": "verify report",
        "netfleet|run|--ov": "--overwrite",
        "netfleet|run|ri": "ring.toml",
        "netfleet|plan|ring.toml|--nodes|ri": "ring.toml",
        "netfleet|compare|--format|": "csv md tex",
        "netfleet|completion|": "bash zsh fish",
    }
    done = subprocess.run(["bash", "-c", BASH, "bash", script, *expected], cwd=tmp_path, capture_output=True, text=True)
    assert dict(zip(expected, done.stdout.splitlines(), strict=True)) == expected, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_with_every_command(shell: str, capsys: Any) -> None:
    pytest.importorskip("shtab", reason="pip install 'netfleet[completion]'")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in ("rehearse", "receipts", "report", "overwrite"))


def test_completion_says_what_to_install_and_which_shells_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "completion needs shtab, not installed here; pip install 'netfleet[completion]'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["completion", "tcsh"])
    assert "'tcsh' (choose from" in capsys.readouterr().err
