"""Queues of tasks in Amazon SQS, in a SQLite file, in a shared folder, or in memory."""
