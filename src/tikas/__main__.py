"""The command line as ``python -m tikas``."""

from tikas.cli import main

if __name__ == "__main__":
    main()
