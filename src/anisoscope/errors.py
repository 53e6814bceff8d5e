"""What a user sees when something is wrong.

``ValueError`` is a caller's mistake, ``AnisoscopeError`` a fault of the environment (a damaged file, a missing
extra, a full disk), ``assert`` a mistake of ours. A message gives the rule, the value, and the next step.
"""


class AnisoscopeError(Exception):
    """The environment does not allow what was asked; the message says what to do about it."""


class DamagedFileError(AnisoscopeError, ValueError):
    """A file is not what its name says, or ends too early."""


class ScopeWarning(UserWarning):
    """Something that a scope cannot observe, and why; the training goes on."""


class BrokenRuleError(ValueError):
    """A caller's mistake, told apart from a ``ValueError`` that a library raised."""


def broken(rule: str, value: object, step: str) -> BrokenRuleError:
    """Build the ``ValueError`` of a broken rule.

    >>> print(broken("rank must be at most 63 for 64 vectors", 128, "lower --rank"))
    rank must be at most 63 for 64 vectors, got 128; lower --rank
    """
    return BrokenRuleError(f"{rule}, got {value}; {step}")
