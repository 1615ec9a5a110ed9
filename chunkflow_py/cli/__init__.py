"""The command line: catalog of commands, parsing of pipelines, progress and messages."""
