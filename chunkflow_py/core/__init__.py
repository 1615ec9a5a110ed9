"""Data that every other package speaks of: boxes, chunks, points, tasks; and safe decoding."""
