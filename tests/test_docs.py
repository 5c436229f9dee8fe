"""Links, commands, modules and sizes of the documentation."""

import importlib
import re
from pathlib import Path

import pytest
from documented import write_programs

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PAGES += sorted((ROOT / "docs/extending").glob("*.md"))
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?[^)]*\)")
IMPORT = re.compile(r"^ *from (flowright[\w.]*) import \(?([\w, ]+)", re.MULTILINE)
AFLOWS = {"round_3/prompt.py", "round_3/graph.py"}
OTHERS = {"README.md", "CHANGELOG.md", "from_other_names.md"}
"""Pages that also name files of other repositories or of the past."""


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def test_links_and_anchors_exist() -> None:
    broken = []
    for page, text in TEXTS.items():
        for target, anchor in LINK.findall(text):
            if target.startswith(("http", "mailto:")):
                continue
            path = page.parent / target if target else page
            if not path.exists() or (anchor and anchor not in anchors(path)):
                broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        reached.add(page)
        linked = {(page.parent / target).resolve() for target, _ in LINK.findall(TEXTS[page])}
        left += [page for page in linked & TEXTS.keys() if page not in reached]
    assert [page.name for page in PAGES if page not in reached] == []


def test_commands_name_files_that_exist() -> None:
    named = {
        name
        for text in TEXTS.values()
        for name in re.findall(
            r"(?:python|bash) ((?:scripts|benchmarks)/[\w/]+\.(?:py|sh)|\w+\.(?:py|sh))", text
        )
        + re.findall(r"\bconfig/(?:study/)?\w+\.yaml\b", text)
    }
    examples = {"config/mine.yaml", "config/aflow_llm.yaml"}  # one's own
    assert {name for name in named if not (ROOT / name).exists()} <= examples


def test_modules_are_named_where_they_are() -> None:
    """Both ``policy/model.py`` and ``flowright.policy.model``."""
    source = ROOT / "src"
    folders, lost = (ROOT, source, source / "flowright"), []
    for page, text in TEXTS.items():
        if page.name in OTHERS:
            continue
        for name in re.findall(r"(?<![\w/.-])\w+(?:/\w+)+\.py\b", text):
            if not any((folder / name).exists() for folder in folders):
                lost.append(f"{page.name}: {name}")
        for name in re.findall(r"\bflowright(?:\.[a-z_]+)+", text):
            module = source / name.replace(".", "/")
            paths = (module, module.with_suffix(".py"), module.parent.with_suffix(".py"))
            if not any(p.exists() for p in paths) and module.parent != source / "flowright":
                lost.append(f"{page.name}: {name}")
    assert {name for name in lost if name.split(": ")[1] not in AFLOWS} == set()


def test_imports_of_every_page_exist() -> None:
    lost = [
        f"{page.name}: from {module} import {name}"
        for page, text in TEXTS.items()
        for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
        for module, names in IMPORT.findall(block)
        for name in re.findall(r"\w+", names)
        if not hasattr(importlib.import_module(module), name)
    ]
    assert lost == []


def test_architecture_has_every_room() -> None:
    page = TEXTS[ROOT / "docs/architecture.md"]
    rooms = [p.name for p in (ROOT / "src/flowright").iterdir() if (p / "__init__.py").exists()]
    assert [room for room in rooms if f"\n  {room}/ " not in page] == []


def test_every_command_is_listed() -> None:
    page = TEXTS[ROOT / "docs/README.md"]
    scripts = {f"scripts/{path.name}" for path in (ROOT / "scripts").glob("*.py")}
    assert {script for script in scripts if f"`{script}`" not in page} == set()
    listed = set(re.findall(r"^\| `([a-z -]+)` \| `", page, re.MULTILINE))
    groups = {name.split()[0] for name in listed if " " in name}
    call = re.compile(r"^(?:\$ |[A-Z_]+=\S+ )*flowright ([a-z][a-z-]*)(?: ([a-z]+))?", re.MULTILINE)
    unknown = []
    for page, text in TEXTS.items():
        for first, second in call.findall(text):
            name = f"{first} {second}" if first in groups else first
            unknown += [] if name in listed else [f"{page.name}: {name}"]
    assert unknown == []


@pytest.mark.parametrize("name", ["extending.md", "extending/environment.md"])
def test_the_programs_of_extending_are_files_that_tests_write(name: str, tmp_path: Path) -> None:
    page = TEXTS[ROOT / "docs" / name]
    blocks = re.findall(r"^```(?:python|yaml)$", page, re.MULTILINE)
    names = write_programs(name, tmp_path)
    assert len({*names}) == len(names) == len(blocks) > 0


def test_the_documentation_stays_short() -> None:
    words = {page: len(text.split()) for page, text in TEXTS.items()}
    assert words[ROOT / "README.md"] <= 500
    assert sum(words.values()) <= 60_000
