"""Task plans: how a volume is divided into boxes, and the number and order of each task."""
