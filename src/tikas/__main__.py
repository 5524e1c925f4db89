"""The command line as ``python -m tikas``."""

import sys

from tikas.cli import main

if __name__ == "__main__":
    sys.exit(main())
