"""Objects under a URL: whole, atomic, durable."""
