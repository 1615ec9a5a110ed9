"""Options that several operators share."""
