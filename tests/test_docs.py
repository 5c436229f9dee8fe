"""What the documentation points at exists."""

import importlib
import re
from pathlib import Path

import pytest
from documented import write_programs

ROOT = Path(__file__).parent.parent
EXTENDING = sorted((ROOT / "docs/extending").glob("*.md"))
PAGES = [*sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]), *EXTENDING]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    broken = [
        link
        for link in links
        if not link.startswith(("http", "mailto:")) and not (page.parent / link).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_name_files_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(
        r"(?:python|bash) ((?:scripts|benchmarks)/\w+\.(?:py|sh)|\w+\.(?:py|sh))", text
    )
    named += re.findall(r"\bconfig/\w+\.yaml\b", text)
    examples = {"config/mine.yaml", "judge_server_example.py"}
    assert {name for name in named if not (ROOT / name).exists()} <= examples


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=lambda path: path.name
)
def test_modules_are_named_where_they_are(page: Path) -> None:
    """``policy/model.py`` as well as ``flowright.policy.model``. CHANGELOG tells old names, too."""
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"(?<![\w/.-])\w+(?:/\w+)+\.py\b", text)
    source = ROOT / "src"
    folders = (ROOT, source, source / "flowright")
    lost = [name for name in files if not any((folder / name).exists() for folder in folders)]
    for name in re.findall(r"\bflowright(?:\.[a-z_]+)+", text):
        module = source / name.replace(".", "/")
        paths = (module, module.with_suffix(".py"), module.parent.with_suffix(".py"))
        if not any(path.exists() for path in paths) and module.parent != source / "flowright":
            lost.append(name)
    aflows = {"round_3/prompt.py", "round_3/graph.py"}
    assert set(lost) <= aflows


def test_the_readme_has_every_part_of_the_house() -> None:
    tree = (ROOT / "README.md").read_text(encoding="utf-8")
    source = ROOT / "src/flowright"
    parts = [
        f"{path.name}/" if path.is_dir() else path.name
        for path in source.iterdir()
        if path.name[0] not in "_."
    ]
    scripts = [path.name for path in (ROOT / "scripts").iterdir() if path.suffix in (".py", ".sh")]
    assert [name for name in (*parts, *scripts) if name not in tree] == []


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [p.name for p in PAGES if p.name != "README.md" and f"{p.name})" not in readme] == []


def test_every_way_to_extend_is_in_the_index() -> None:
    index = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    assert [p.name for p in EXTENDING if f"(extending/{p.name})" not in index] == []


@pytest.mark.parametrize("page", EXTENDING, ids=lambda path: path.name)
def test_every_block_of_these_pages_is_a_file_that_tests_can_write(
    page: Path, tmp_path: Path
) -> None:
    blocks = re.findall(r"^```(?:python|yaml)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(write_programs(f"extending/{page.name}", tmp_path)) == len(blocks) > 0


def test_the_imports_of_every_page_exist() -> None:
    imports = re.compile(r"^ *from (flowright[\w.]*) import \(?([\w, ]+)", re.MULTILINE)
    lost = [
        f"{page.name}: from {module} import {name}"
        for page in PAGES
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
        for module, names in imports.findall(block)
        for name in re.findall(r"\w+", names)
        if not hasattr(importlib.import_module(module), name)
    ]
    assert lost == []
