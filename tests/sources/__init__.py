"""Mounts of datasets that are no directories."""
