"""Built-in networks: one file each."""
