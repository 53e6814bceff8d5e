"""``python -m anisoscope``, and where the console script begins: Ctrl-C during imports is no traceback."""

import sys


def start() -> None:
    """Import the command line and run it."""
    try:
        from anisoscope.cli import main
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    main()


if __name__ == "__main__":
    start()
