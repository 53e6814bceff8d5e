import os

# Checked before anything is imported: every annotation in the package holds at run time too.
from beartype import BeartypeConf
from beartype.claw import beartype_package

beartype_package(
    "anisoscope",
    conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError, claw_skip_package_names=("anisoscope.cli",)),
)

import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

# Examples are derived from the test's name, so that a run tells the same story twice.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
