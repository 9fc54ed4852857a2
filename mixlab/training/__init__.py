"""Training that loses no work: a thin Trainer, verified checkpoints, a guard against steps that are not finite, and the run directory."""
