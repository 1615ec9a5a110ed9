"""Filters of intensities: contrast from histograms of whole volumes, and smoothing."""
