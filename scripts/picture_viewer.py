#!/usr/bin/env python3
"""Pictures of the viewer's pages in a real browser: docs/viewer/*.png, of a run of the quickstart.

    pip install playwright                       # into an environment of its own
    python scripts/picture_viewer.py outputs/quickstart --browser /usr/bin/chromium

It needs a Chromium and Playwright, which are no requirements of this package. A page that opens a
dialog, breaks a rule of its own policy or has an error of script ends it: give it a run with
hostile texts to see that they do nothing.
"""

import argparse
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # need not be installed
WIDE, PHONE = (1280, 860), (390, 800)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--browser", metavar="PATH", help="default: Playwright's own Chromium")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/viewer", metavar="DIR")
    parser.add_argument("--other", default="", metavar="NAME", help="a run beside it, to compare")
    parser.add_argument("--python", default=sys.executable, help="runs scripts/view.py")
    return parser.parse_args(arguments)


@contextlib.contextmanager
def served(python: str, root: Path) -> Iterator[str]:
    """The address of a viewer of the runs in a folder, while it lasts."""
    command = [python, str(ROOT / "scripts/view.py"), str(root), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[0].rstrip("/")
        finally:
            server.terminate()


def pictures(
    run: str, place: str, task: str, other: str
) -> list[tuple[str, str, tuple[int, int], bool]]:
    """Names, addresses, sizes, whether it is dark. ``other``: a run to compare with, or none."""
    at = f"/run/{run}"
    group = place.rpartition("/")[0]
    return [
        ("runs", "/", WIDE, False),
        ("run", f"{at}/", WIDE, False),
        ("attempts", f"{at}/attempts", WIDE, False),
        ("search", f"{at}/attempts?q=ensemble&outcome=wrong&sort=llm_tokens", WIDE, True),
        ("attempt", f"{at}/attempt/{place}", (1280, 1250), False),
        ("group", f"{at}/group/{group}", (1280, 1100), False),
        ("problem", f"{at}/{task}", (1280, 1000), False),
        ("compare", f"/compare?run={run}{other and f'&run={other}'}", WIDE, False),
        ("phone", f"{at}/attempts", PHONE, True),
    ]


def first_link(page: Any, part: str) -> str:
    """The address of the first link of a page that has a part."""
    found = page.locator(f'a[href*="{part}"]').first.get_attribute("href", timeout=60_000)
    return str(found)


def press_keys(page: Any, list_: str) -> list[str]:
    """Goes about by the keyboard alone; what a key did not do."""
    troubles: list[str] = []

    def expect(what: str, holds: object) -> None:
        if not holds:
            troubles.append(f"keys: {what} ({page.url})")

    page.goto(list_)
    marked = "[...document.querySelectorAll('#rows tbody tr')].findIndex(r => r.matches('.on'))"
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect("j j marks the second row", page.evaluate(marked) == 1)
    page.keyboard.press("k")
    expect("k marks the first row", page.evaluate(marked) == 0)
    page.keyboard.press("?")
    expect("? opens the help", page.evaluate("document.getElementById('help').open"))
    page.keyboard.press("Escape")
    expect("Escape closes it", not page.evaluate("document.getElementById('help').open"))
    page.keyboard.press("/")
    expect("/ goes to the search", page.evaluate("document.activeElement.type") == "search")
    page.keyboard.type("ensemble")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=ensemble**")
    page.keyboard.press("j")
    page.keyboard.press("o")
    page.wait_for_url("**/attempt/**")
    expect("o keeps the search", "q=ensemble" in page.url)
    first = page.url
    page.keyboard.press("j")
    page.wait_for_url(lambda url: url != first)
    expect("j is the next attempt", "/attempt/" in page.url)
    page.keyboard.press("e")
    shut = "[...document.querySelectorAll('main details')].filter(d => !d.open).length"
    expect("e opens all texts", page.evaluate(shut) == 0)
    page.keyboard.press("u")
    page.wait_for_url("**/attempts?**")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url(lambda url: url.split("?")[0].endswith("/"))
    return troubles


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]
    except ImportError:
        sys.exit("this needs Playwright: pip install playwright, in an environment of its own")
    options.out.mkdir(parents=True, exist_ok=True)
    run = options.run.resolve()
    troubles: list[str] = []
    with served(options.python, run.parent) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.browser)
        page = browser.new_page()
        page.set_default_timeout(120_000)
        list_ = f"{address}/run/{run.name}/attempts?sort=calls"
        page.goto(list_)
        place = re.split(r"[?]", first_link(page, "/attempt/"))[0].split("/attempt/")[1]
        task = first_link(page, "problem?").rpartition("/")[2]
        shown_pages = pictures(run.name, place, task, options.other)
        for name, path, (width, height), dark in shown_pages:
            scheme = "dark" if dark else "light"
            shown = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            shown.set_default_timeout(120_000)
            shown.on("dialog", lambda each: troubles.append(f"a dialog: {each.message}"))
            shown.on("console", lambda each: troubles.append(each.text))
            shown.on("pageerror", lambda each: troubles.append(str(each)))
            shown.goto(address + path)
            shown.screenshot(path=str(options.out / f"{name}.png"))
            wide = shown.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                troubles.append(f"{name}: {wide} pixels wide, not {width}")
            shown.close()
        troubles += press_keys(page, list_)
        browser.close()
    print(*troubles, sep="\n", file=sys.stderr)
    print(f"{options.out}: {len(shown_pages)} pictures, keys pressed, {len(troubles)} troubles")
    return 1 if troubles else 0


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main))
