"""Several ranks, on one host and on the two hosts of the lab, whole and with parts killed."""
