"""Scores of the tasks of a line: printed, kept, or stored as tables that add up to a volume's."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import OptionError
from chunkflow_py.segmentation.evaluate import score
from chunkflow_py.segmentation.evaluate_objects import score_table
from chunkflow_py.segmentation.labels.components import single_channel
from chunkflow_py.segmentation.labels.contingency import KIND, contingency, put_table
from chunkflow_py.store.local_files import write_whole
from chunkflow_py.store.task_counts import CountStore, check_tasks, counted_region

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.task import Task

logger = logging.getLogger(__name__)


@dataclass
class Evaluator(OperatorBase):
    """Scores the segmentation of every task.

    Attributes:
        segmentation_name: of a chunk.
        groundtruth_name: of a chunk.
        output: name of the scores in the task.
        evaluate: (segmentation, ground truth, **options) -> scores by name.
        options: of *evaluate*.
        print: takes the table.
        json: file for the scores, or prefix of one a task.
        table_path: URL below which the overlaps of each task go, instead of being printed.
    """

    segmentation_name: str
    groundtruth_name: str
    output: str
    evaluate: Callable[..., dict[str, Any]]
    options: dict[str, Any]
    print: Callable[[str], None]
    json: str | None = None
    table_path: str | None = None

    @property
    @hook
    def destinations(self) -> tuple[str, ...]:
        """Where the tables go."""
        return (self._store.place,) if self.table_path else ()

    @property
    def _store(self) -> CountStore:
        return CountStore(self.table_path or "", KIND)

    @hook
    def prepare(self, outline: Any) -> None:
        """Refuse one JSON file for several tasks, and tables of tasks that overlap.

        Args:
            outline: an `Outline`.
        """
        count = 0 if outline.boxes is None else len(outline.boxes)
        if self.json and self.json.endswith(".json") and count > 1:
            msg = (
                f"--json {self.json} is one file, but there are {count} tasks; give a prefix "
                f"without .json, such as {self.json.removesuffix('.json')}_, to get one file a task"
            )
            raise OptionError(msg)
        if self.table_path:
            check_tasks(outline.boxes)

    def __call__(self, task: Task) -> Task:
        """Score, print or store the table, keep the scores."""
        ours, truth = task.chunk(self.segmentation_name), task.chunk(self.groundtruth_name)
        if self.table_path:
            scores = self._stored(task)
        else:
            scores = self.evaluate(ours, truth, **self.options)
            title = f"{self.segmentation_name} against {self.groundtruth_name}"
            self.print(score_table(scores, f"{title} in {scores['bbox']}"))
        task[self.output] = scores
        if self.json and scores is not None:
            whole = self.json.endswith(".json")
            path = self.json if whole else f"{self.json}{task.region or scores['bbox']}.json"
            write_whole(path, (json.dumps(scores, indent=2) + "\n").encode())
        return task

    def _stored(self, task: Task) -> dict[str, Any] | None:
        """Store the table of the task's box; return its scores, or ``None`` without any truth."""
        ours, truth = task.chunk(self.segmentation_name), task.chunk(self.groundtruth_name)
        region = counted_region(task, ours, truth)
        arrays = (single_channel(chunk.cut(region.bbox).array) for chunk in (ours, truth))
        table = contingency(*arrays)
        task.written.append(put_table(self._store, region, table, ours.domain))
        logger.info("%s: %d overlaps stored", region, len(table))
        skip = {"bbox", "relabel"}
        options = {key: value for key, value in self.options.items() if key not in skip}
        ignored = {*options["ignore_bodies"], *([0] if options["ignore_zero"] else [])}
        if not len(table.without(options["ignore_segments"], ignored)):
            return None
        return {"bbox": str(region.bbox), **score(table, **options).as_dict()}
