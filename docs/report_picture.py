"""A picture of the top of a real report, for the README: ``python docs/report_picture.py RUN PICTURE.png``.

Needs Chromium: one on the path, or playwright's own (``playwright install chromium``). The run is one that you made,
for instance by ``anisoscope pair``; its page is made anew first.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from anisoscope.report.make import make_report, write_whole

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
SIZE = 1200, 900  # width and height


def main(run: str, picture: str) -> None:
    page_file = Path(run) / "report.html"
    write_whole(page_file, make_report([run]).encode())
    own = next((found for name in NAMES if (found := shutil.which(name))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=own, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": SIZE[0], "height": SIZE[1]}, device_scale_factor=2, color_scheme="light"
        )
        page.goto(page_file.absolute().as_uri())
        page.wait_for_timeout(1500)  # until plots are drawn
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
