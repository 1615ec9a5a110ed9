"""The package as a new user installs it."""
