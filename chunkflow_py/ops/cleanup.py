"""Remove files of a folder, all or some.

Example: chunkflow cleanup --dir flags/ --mode empty --suffix .h5

Run cleanup as a separate pipeline. It removes only files that lie directly in the folder, not
folders or links. With --dry-run before the command, cleanup lists these files and removes nothing.
The folder may be a URL, such as s3://bucket/flags.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import is_dry_run
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Outline
    from chunkflow_py.store.store_protocol import Store

SECTION = "steer"

Mode = Literal["exist", "empty", "not-empty"]


def cleanup(
    folder: str, mode: Mode = "exist", suffix: str = "", *, dry_run: bool = False
) -> tuple[list[str], int]:
    """Remove files of a folder; return the names removed and the number of files that remain.

    Links and folders are kept. Temporary files, in which other processes prepare their output, are
    kept as well.

    Args:
        folder: path or URL.
        mode: remove all files (``exist``), only empty files (``empty``), or only files with content
            (``not-empty``).
        suffix: ending of the names of files to remove.
        dry_run: remove nothing; return the names that would be removed.

    Raises:
        VolumeError: the folder cannot be listed, or a file cannot be removed.
    """
    from chunkflow_py.store import open_store

    store = open_store(folder)
    listing = sorted(_local_files(store.url) if store.is_local else _objects(store))
    matching = [(name, size) for name, size in listing if name.endswith(suffix)]
    wanted = {"exist": (True, True), "empty": (True, False), "not-empty": (False, True)}[mode]
    chosen = [name for name, size in matching if wanted[size > 0]]
    if not dry_run:
        for name in chosen:
            store.delete(name)
    return chosen, len(listing) - len(chosen)


def _local_files(url: str) -> Iterator[tuple[str, int]]:
    from chunkflow_py.store.local_files import TEMPORARY_PREFIX, os_errors

    path = Path(url.removeprefix("file://"))
    with os_errors("read", path), os.scandir(path) as entries:
        for entry in entries:
            # A link may lead out of the folder.
            if entry.is_file(follow_symlinks=False) and not entry.name.startswith(TEMPORARY_PREFIX):
                yield entry.name, entry.stat(follow_symlinks=False).st_size


def _objects(store: Store) -> Iterator[tuple[str, int]]:
    for key in store.list():
        size = None if "/" in key else store.size(key)
        if size is not None:  # deleted since it was listed
            yield key, size


@dataclass
class Cleaner(OperatorBase):
    """Removes files when the pipeline runs."""

    folder: str = "./"
    mode: Mode = "exist"
    suffix: str = ""
    dry_run: bool = False

    @hook
    def prepare(self, outline: Outline) -> None:
        """Refuse a pipeline with tasks, because every task would remove the same files.

        Raises:
            OptionError: the pipeline has tasks.
        """
        if outline.has_tasks:
            msg = (
                "cleanup would remove the same files for every task; run cleanup in a pipeline of "
                "its own"
            )
            raise OptionError(msg)

    def __call__(self, task: Task) -> Task:
        """Remove the files and print their number."""
        removed, remaining = cleanup(self.folder, self.mode, self.suffix, dry_run=self.dry_run)
        for name in removed if self.dry_run else ():
            echo(name)
        would = "would remove" if self.dry_run else "removed"
        echo(f"{would} {len(removed)} files of {self.folder}; {remaining} remain")
        return task


@operator("compute")
@click.option("--dir", "-d", "folder", default="./", show_default=True,
              help="Path or URL of the folder.")  # fmt: skip
@click.option(
    "--mode",
    "-m",
    type=click.Choice(["exist", "empty", "not-empty"]),
    default="exist",
    show_default=True,
    help="Remove all files, only empty files, or only files with content.",
)
@click.option("--suffix", "-s", help="Ending of the names of files to remove.  [default: any]")
def command(folder: str, mode: Mode, suffix: str | None) -> Cleaner:
    """Return the operator, which removes nothing in a dry run."""
    return Cleaner(folder, mode, suffix or "", is_dry_run())
