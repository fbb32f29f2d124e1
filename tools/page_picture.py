"""Make ``docs/images/page.png``: the server's page in Chromium, after the demo wrote a text.

``python tools/page_picture.py``; needs the extra ``test`` and Debian's ``chromium``.
"""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.browser import Browser, chromium
from harness.served import serving

from mtpcore import LM
from mtpcore.serving import ServerSettings

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "page.png"
TEXT = 'def read_config(path):\n    """'
SETTINGS = {"temperature": "0.3", "seed": "1", "max_tokens": "100", "drafts": "fixed", "draft": "4"}


def main(path: str) -> None:
    """Let the demo write, and keep what is seen then."""
    with (
        LM("demo", n_ctx=512, n_seq_max=1) as lm,
        serving(lm, ServerSettings(name="demo")) as url,
        tempfile.TemporaryDirectory() as profile,
    ):
        browser = Browser(path, Path(profile))
        with browser.page(width=1200, height=720) as page:
            page.open(url)
            kept = json.dumps(json.dumps(SETTINGS))
            page.evaluate(f"localStorage.setItem('mtpcore.settings', {kept})")
            page.open(f"{url}/?")
            page.wait("document.querySelector('#model').textContent === 'demo'")
            page.write(TEXT)
            page.press("Enter")
            page.wait("document.querySelector('.figures')")
            page.wait(
                "document.querySelector('#drawing').textContent.includes('100 tokens so far')"
            )
            page.evaluate("document.activeElement.blur()")
            PICTURE.write_bytes(page.picture())
        browser.close()


if __name__ == "__main__":
    found = chromium()
    if found is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    main(found)
