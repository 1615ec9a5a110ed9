"""Where tasks wait for workers."""
