"""``python -m mtpcore``: the command line."""

import sys

from mtpcore.cli import main

sys.exit(main())
