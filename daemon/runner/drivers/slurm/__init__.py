"""Tasks as jobs of a Slurm cluster (docs/cluster.md); only this package uses Slurm's programs."""
