"""Entry point: ``python -m chunkflow_py`` runs the command ``chunkflow``."""

import sys

from chunkflow_py.core.interrupts import keep_signals, starts_worker


def main() -> None:
    """Run the command line.

    The slow imports would miss a stop signal. ``work`` and ``run`` therefore record stop signals
    from the beginning.
    """
    if starts_worker(sys.argv[1:]):
        keep_signals()
    from chunkflow_py.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
