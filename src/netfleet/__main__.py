"""`python -m netfleet` is the command line."""

import sys

from netfleet.cli import main

sys.exit(main())
