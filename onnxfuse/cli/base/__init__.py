"""Console, option types and output files that commands share."""
