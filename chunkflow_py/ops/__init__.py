"""One file an operator; the file name is the command name."""
