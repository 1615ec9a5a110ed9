"""``python -m chunkflow_py`` is ``chunkflow``."""

from chunkflow_py.cli.main import main

if __name__ == "__main__":
    main()
