"""``python -m anisoscope.cli``, for where the console script is not on the path."""

from anisoscope.__main__ import start

start()
