"""Other libraries' names for what gdn_cuda has: change an import, and nothing else."""
