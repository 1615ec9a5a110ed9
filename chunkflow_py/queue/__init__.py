"""Queues of tasks: Amazon SQS, a SQLite file, a shared folder, or memory."""
