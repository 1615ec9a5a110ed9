"""Task plans: the boxes into which a volume is divided, their numbers and their order."""
