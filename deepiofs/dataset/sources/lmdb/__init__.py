"""LMDB as a source, in the way of LMDBIO (HPCC 2017, doi 10.1109/HPCC-SmartCity-DSS.2017.29)."""
