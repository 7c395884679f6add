"""`python -m netfleet` is the command line."""

import sys

from netfleet.cli.main import main

sys.exit(main())
