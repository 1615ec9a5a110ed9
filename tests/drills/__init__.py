"""What kills, stops and damages runs on purpose, and one checker of what must hold after it."""
