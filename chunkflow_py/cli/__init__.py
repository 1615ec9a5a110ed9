"""The command line: catalog of operators, chain group, what a person sees."""
