"""Contrast stretching, smoothing, and histograms of volumes and sections."""
