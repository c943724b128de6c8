"""Console, option types and output files shared by the commands."""
