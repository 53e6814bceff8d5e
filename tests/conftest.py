import os

from beartype import BeartypeConf
from beartype.claw import beartype_package


class ViolationError(TypeError, ValueError):
    """A wrong type is wrong use, whichever of the two a test expects."""


# Before anything of the package is imported: every annotation in it holds at run time too. Not in the commands and the
# report, which are text: they take three times as long so.
beartype_package(
    "anisoscope",
    conf=BeartypeConf(
        is_pep484_tower=True,
        violation_type=ViolationError,
        claw_skip_package_names=("anisoscope.cli", "anisoscope.report"),
    ),
)

os.environ.setdefault("ANISOSCOPE_LIVE_PAGE", "0")  # no process beside every scope; the tests of it switch it on

import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

# Examples are derived from the test's name, so that a run tells the same story twice.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
