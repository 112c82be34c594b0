"""HDF5 as a source: the rows of its datasets."""
