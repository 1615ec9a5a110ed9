"""Where chunks rest: volumes on disk and in the cloud."""
