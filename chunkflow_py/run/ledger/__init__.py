"""The record of what is done, durable and checked."""
