"""deepiofs: a dataset held once in the joint memory of a job's nodes, behind ordinary paths."""

__version__ = "0.1.0"
