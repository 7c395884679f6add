"""Apply a trained model to the rows of a CSV file."""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="a model's file, such as DIR/model.safetensors")
    words = "the rows: a file with the columns of the training, raw; the target is not needed, others are not looked at"
    parser.add_argument("data", type=Path, metavar="DATA.csv", help=words)
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="where to write (default: standard output)")
    words = "import the code that the model's file names, if its architecture is not one of netfleet's"
    parser.add_argument("--trust-code", action="store_true", help=words)


def run(options: argparse.Namespace) -> int:
    import io
    import sys

    from rich.console import Console

    from netfleet.cli.shared import say_wrote
    from netfleet.files import write_atomically
    from netfleet.prediction.model import load_model
    from netfleet.registry import make_importable

    if options.trust_code:
        make_importable(None)
    text = io.StringIO()
    load_model(options.model, trust_code=options.trust_code).predict(options.data).write_csv(text)
    if options.out is None:
        sys.stdout.write(text.getvalue())
        return 0
    write_atomically(options.out, lambda file: file.write(text.getvalue().encode()))
    say_wrote(Console(), options.out)
    return 0
