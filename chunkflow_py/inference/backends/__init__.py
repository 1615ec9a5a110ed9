"""What runs a network: one file a framework."""
