"""The version of the package: here and nowhere else. Wheels read it too (``pyproject.toml``)."""

__version__ = "0.2.0.dev0"
