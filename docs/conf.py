"""How the pages become a site: `make docs` writes it to build/site, without a network.

Sphinx, since MkDocs 1.x is no longer kept (as of November 2026). The sources are the Markdown files
of the whole repository, so that every link works as it stands, on a code host and in the site:
links to pages lead to pages, links to other files are downloads. What is read from the code
(`reference.py`) is added to docs/commands.md and docs/api.md while the site is built. It is
therefore never stale; who reads the files on a code host has `chunkflow COMMAND --help` and the
docstrings instead.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import reference  # noqa: E402 (found by the line above)

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "chunkflow_py"
project_copyright = "the chunkflow_py authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "deploy/**.md", "examples/**.md"]
exclude_patterns = [".*", "build", "benchmarks", "chunkflow_py", "tests", "demo-output"]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
napoleon_use_ivar = True  # attributes stand in the docstring of their class
default_role = "code"  # `name` in a docstring

html_theme = "furo"
html_title = "chunkflow_py"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["figures/site.css"]
html_css_files = ["site.css"]

# A page that stands nowhere here is a warning, and warnings are errors. Those that are not there
# are left out.
NAVIGATION = {
    "Begin": ["tutorial", "install", "concepts", "glossary"],
    "How to": [
        "count-nuclei",
        "own-model",
        "own-format",
        "runs",
        "planning",
        "costs",
        "resuming",
        "pool",
        "upgrading",
        "verifying",
        "progress",
        "dashboard",
        "report",
        "doctor",
        "dask-runs",
        "extending",
    ],
    "Coming from": ["from-chunkflow", "from-igneous", "from-monai", "from-nnunet", "peers"],
    "In depth": [
        "inference",
        "volumes",
        "labels",
        "proofreading",
        "meshes",
        "annotations",
        "statistics",
        "viewing",
        "tuning",
        "security",
    ],
    "Reference": ["commands", "api"],
    "How fast": [
        "performance",
        "benchmarks",
        "benchmarks-gpu",
        "benchmarks-volumes",
        "benchmarks-queue",
        "benchmarks-operators",
        "benchmarks-exchange",
        "benchmarks-segmentation",
    ],
    "Machines": ["../deploy/slurm/README", "../deploy/kubernetes/README", "../deploy/aws/README"],
    "The project": ["architecture", "../CONTRIBUTING", "contributing", "../CHANGELOG"],
}


def add_generated(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the navigation to the first page, and to two pages what is read from the code."""
    if page == root_doc:
        source[0] += navigation(Path(app.srcdir))
    elif page == "docs/commands":
        source[0] += reference.commands()
    elif page == "docs/api":
        source[0] += reference.python()


def navigation(root: Path) -> str:
    """Return the tables of contents of the sidebar, as Markdown.

    Args:
        root: of the sources.
    """
    trees = dict(NAVIGATION)
    trees["Examples"] = [f"../{path.with_suffix('')}" for path in _examples(root)]
    text = ""
    for caption, pages in trees.items():
        names = [f"docs/{page}".replace("docs/../", "") for page in pages]
        lines = [name for name in names if (root / f"{name}.md").is_file()]
        text += "\n\n" + "\n".join(
            ["```{toctree}", ":hidden:", f":caption: {caption}", "", *lines, "```"]
        )
    return text


def _examples(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.glob("examples/*/*.md"))


def read_docstring(*event: object) -> None:
    """Take drawings between ``` in docstrings, and ``words``s, as they are meant.

    Args:
        event: what Sphinx says of a docstring; the last one is the list of its lines.
    """
    lines = cast("list[str]", event[-1])
    text = re.sub(
        r"^( *)```\n(.*?)^ *```$",
        lambda match: f"{match[1]}::\n\n" + re.sub("^", "    ", match[2], flags=re.MULTILINE),
        "\n".join(lines),
        flags=re.MULTILINE | re.DOTALL,
    )
    lines[:] = re.sub(r"(``[^`\n]+``)(?=\w)", r"\1\\ ", text).split("\n")


def begin_with_readme(app: Sphinx, error: Exception | None) -> None:
    """Let the site open with the README."""
    page = Path(app.outdir) / "README.html"
    if error is None and page.is_file():
        shutil.copyfile(page, page.with_name("index.html"))


def setup(app: Sphinx) -> None:
    """Connect what is above with the build."""
    app.connect("source-read", add_generated)
    app.connect("autodoc-process-docstring", read_docstring, priority=400)  # before napoleon
    app.connect("build-finished", begin_with_readme)
