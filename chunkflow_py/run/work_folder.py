"""Folders of intermediate results, so that an interrupted command can be continued."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError
from chunkflow_py.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chunkflow_py.store.store_protocol import Access


def begin_in(
    place: str,
    description: Mapping[str, Any],
    *,
    record: str,
    results: str,
    what: str,
    overwrite: bool,
    access: Access,
) -> None:
    """Store the parameters of a command in its folder, or compare them with stored parameters.

    Args:
        place: URL of the folder or prefix.
        description: all parameters that determine the intermediate results, as a JSON object.
        record: key below *place* under which the parameters are stored.
        results: folder of the intermediate results below *place*.
        what: plural noun for the results in messages, such as ``links``.
        overwrite: whether to delete existing results first.
        access: credentials and options of the store.

    Raises:
        OptionError: the folder contains results of a command with other parameters.
    """
    content = json.dumps(description, indent=2).encode() + b"\n"
    store, kept = open_store(place, access), open_store(f"{place}/{results}", access)
    if overwrite:
        for key in list(kept.list()):
            kept.delete(key)
        store.put(record, content, content_type="application/json")
    elif not store.put_if_absent(record, content) and store.get(record) != content:
        msg = (
            f"{place} contains {what} of a command with other parameters (see {place}/{record}); "
            f"the parameters of this command are {json.dumps(description)}; choose another "
            f"--work-path, or add --overwrite to make the {what} again"
        )
        raise OptionError(msg)
