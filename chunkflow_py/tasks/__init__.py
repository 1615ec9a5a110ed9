"""Task plans: division of a volume into boxes, their numbers and their order."""
