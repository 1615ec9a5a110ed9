"""Check this machine, stores and queues before a run.

doctor prints a line for each check: ok, a note, or a problem with its remedy. The exit code is 1 if
there is a problem. Stores and queues are only read, unless --write is given. With --write, doctor
writes a small object to each store. For each queue, doctor creates a test queue in the same account
or folder. At the end, doctor removes the objects and the test queues. No secret is printed.

Example: chunkflow doctor --store s3://bucket/affinity --queue sqs://affinity

doctor --policy RUN prints the minimum permissions that the submitter and the workers of a run need.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from chunkflow_py.cli.shared_options import json_option
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.pipeline.params import NAMES
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable


# fmt: off
@subcommand
@click.option("--store", "stores", multiple=True, metavar="URL",
              help="Address of a folder, bucket or volume to check; may be given several times.")
@click.option("--queue", "-q", "queues", multiple=True, metavar="URL",
              help="Address of a queue to check; may be given several times.")
@click.option("--write", is_flag=True,
              help="Also check writing, with test objects and test queues that are removed again.")
@click.option("--only", type=NAMES, metavar="NAMES",
              help="Run only these checks, such as disk,gpu.  [default: all checks]")
@click.option("--policy", metavar="RUN",
              help="Print the minimum permissions on AWS and Google Cloud that the run at this "
                   "address needs, instead of running checks.")
@json_option()
def command(
    stores: tuple[str, ...], queues: tuple[str, ...], write: bool, only: tuple[str, ...] | None,
    policy: str | None, as_json: bool,
) -> Callable[[], None]:
    """Return the function that runs the checks, or prints the permissions for --policy."""
    # fmt: on

    def act() -> None:
        if policy is not None:
            from chunkflow_py.planning.doctor.access_policy import policy_of

            access = policy_of(policy)
            echo(json.dumps(access.to_json(), indent=2) if as_json else access.text())
            return
        _check_names(only or (), stores, queues)
        from chunkflow_py.planning.doctor.examine import Places, examine

        findings = []
        for finding in examine(Places(stores, queues, write), only or ()):
            findings.append(finding)
            if not as_json:
                echo(finding)
        problems = sum(each.level == "problem" for each in findings)
        if as_json:
            result = {"findings": [each.to_json() for each in findings], "problems": problems}
            echo(json.dumps(result, indent=2))
        elif not (stores or queues or only):
            echo(
                "Stores, queues and the clock were not checked; to check them, add --store URL "
                "and --queue URL.",
                err=True,
            )
        if problems:
            click.get_current_context().exit(1)

    return act


def _check_names(
    names: tuple[str, ...], stores: tuple[str, ...], queues: tuple[str, ...]
) -> None:
    """Refuse --only if a name is unknown, or if none of the named checks can run.

    Raises:
        OptionError: a name is unknown, or all named checks lack the --store or --queue to check.
    """
    from difflib import get_close_matches

    from chunkflow_py.errors import OptionError
    from chunkflow_py.planning.doctor.examine import CHECKS

    for name in names:
        if name not in CHECKS:
            near = get_close_matches(name, CHECKS, n=1, cutoff=0.0)[0]
            checks = ", ".join(CHECKS)
            msg = (
                f"--only {name}: no check has this name; did you mean {near}? The checks are "
                f"{checks}"
            )
            raise OptionError(msg)
    named = {"store": stores, "queue": queues, "clock": (*stores, *queues)}
    if names and not any(named.get(name, names) for name in names):
        options = {"store": "--store URL", "queue": "--queue URL"}
        missing = options.get("".join(names), "--store URL or --queue URL")
        msg = f"--only {','.join(names)} needs a store or queue to check; add {missing}"
        raise OptionError(msg)
