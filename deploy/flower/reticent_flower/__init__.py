"""Calibration rounds over Flower: the plan's digest and the noised release travel, nothing else."""
