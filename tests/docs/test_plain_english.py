"""The project writes plain English: banned terms stay out, and the glossary has every term.

CONTRIBUTING.md lists the terms of the field that this project uses and the ones that they replace.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "chunkflow_py"

# In sentences: docstrings, messages, help and pages. Options and arguments keep their spelling, as
# --no-rehearse and, in a list of arguments, `rehearse:`.
BANNED_PHRASES = re.compile(
    r"(?<!--)(?<!--no-)"
    r"\b(told|foretold|foretells?|whom|(?<!as )soon|of late|hangs? together|taken away|"
    r"grey values?|rehears\w+(?!:)|misfits?|(?<!there )(?:is|are) no (?!longer|more|less)\w+|"
    r"lanes?|verbs?|manners|all well|mend(?:s|ed)?|just so)\b",
    re.IGNORECASE,
)
# Parts of the names of functions, classes, arguments and variables.
BANNED_IN_NAMES = {
    *("told", "said", "words", "foretold", "crew", "doubt", "manners", "misfit", "lane", "lanes"),
    *("verb", "verbs", "looks", "loose", "outlet", "intake", "whom"),
}
# Names that are stored, typed or public, and therefore stay.
FROZEN_NAMES: set[str] = {"LooksAtChunk"}

# Packages and pages that do not comply yet; each must leave this list when it does.
PACKAGES_TO_REWRITE: set[str] = set()
PAGES_TO_REWRITE: set[str] = set()


def sentences_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string that holds several words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def names_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the spelling of each name that the file defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def parts_of(name: str) -> set[str]:
    """Return the lower-case words of a name in snake_case or CamelCase."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def findings_in_code(file: Path) -> list[str]:
    """Return each banned term of a Python file, with its place."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    place = file.relative_to(ROOT)
    return [
        f"{place}:{line}: {match[0]!r} in a text"
        for line, text in sentences_of(tree)
        for match in BANNED_PHRASES.finditer(text)
    ] + [
        f"{place}:{line}: name {name}"
        for line, name in names_of(tree)
        if name not in FROZEN_NAMES and parts_of(name) & BANNED_IN_NAMES
    ]


def findings_in_page(page: Path) -> list[str]:
    """Return each banned term in the prose of a page, without code and the list of terms."""
    no_prose = r"^[ ]*```.*?^[ ]*```[ ]*$|`[^`\n]*`|^### Terms\n.*?(?=^## )"
    text = re.sub(no_prose, "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [f"{page.relative_to(ROOT)}: {m[0]!r}" for m in BANNED_PHRASES.finditer(text)]


PARTS = sorted({p.relative_to(PACKAGE).parts[0] for p in PACKAGE.rglob("*.py")})
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
    *sorted(ROOT.glob("deploy/*/README.md")),
]


@pytest.mark.parametrize("part", PARTS)
def test_a_package_has_no_banned_term(part: str) -> None:
    """Names, docstrings, help and messages are in plain English."""
    files = (
        sorted((PACKAGE / part).rglob("*.py")) if (PACKAGE / part).is_dir() else [PACKAGE / part]
    )
    findings = [each for file in files for each in findings_in_code(file)]
    if part in PACKAGES_TO_REWRITE:
        assert findings, f"{part} complies: take it out of PACKAGES_TO_REWRITE"
    else:
        assert not findings, "\n".join(findings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_banned_term(page: Path) -> None:
    """Pages are in plain English."""
    findings = findings_in_page(page)
    if str(page.relative_to(ROOT)) in PAGES_TO_REWRITE:
        assert findings, "the page complies: take it out of PAGES_TO_REWRITE"
    else:
        assert not findings, "\n".join(findings)


def test_the_glossary_has_every_term() -> None:
    """Each term that CONTRIBUTING.md prescribes is explained in docs/glossary.md."""
    section = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("### Terms")[2]
    rows = re.findall(r"^\| (?!say|-)([^|]+) \|", section.partition("\n## ")[0], re.MULTILINE)
    prescribed = {term.strip() for row in rows for term in row.split(",")}
    assert len(prescribed) > 20
    glossary = " ".join((ROOT / "docs/glossary.md").read_text("utf-8").lower().split())
    explained = {
        term.strip()
        for bold in re.findall(r"\*{1,2}(?![\s*])([^*]+)\*{1,2}", glossary)
        for term in bold.split(",")
    }
    assert prescribed <= explained, prescribed - explained


def test_banned_terms_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search sees names, docstrings, messages and prose, and leaves code in pages alone."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(
        'def f(words):\n    """Return what is told."""\n    raise E("this is no box")\n'
    )
    assert len(findings_in_code(tmp_path / "a.py")) == 3
    (tmp_path / "a.md").write_text("All lanes.\n\n```sh\nchunkflow told\n```\n\n`lane` stays.\n")
    assert findings_in_page(tmp_path / "a.md") == ["a.md: 'lanes'"]
