"""``python -m bench.calibration [--repetitions 2000] [--only NAME …]``: run sections, then assemble the page.

Every section is kept in ``bench/results/calibration``; the page is made of what is kept, so one of them can be remade
alone. ``--only`` without a name assembles the page and runs nothing.
"""

from __future__ import annotations

import argparse
import sys

import torch

from bench.calibration.page import PAGE, SECTIONS, kept, page, run, unlisted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--only", nargs="*", choices=SECTIONS, metavar="SECTION", help=", ".join(SECTIONS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in SECTIONS if options.only is None else options.only:
        run(SECTIONS[name], options.repetitions)
    records = kept()
    PAGE.write_text(page(records), encoding="utf-8")
    above = unlisted(records)
    print(
        "\n".join(["above the bar and not explained:", *above] if above else ["no cell is above the bar unexplained"])
    )
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
