"""``python -m anisoscope``: the command line."""

from anisoscope.cli import main

main()
