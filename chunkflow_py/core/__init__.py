"""Data types that all packages use (boxes, chunks, points, tasks), and safe decoding of files."""
