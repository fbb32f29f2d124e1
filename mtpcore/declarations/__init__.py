"""What plugins declare and the core reads: models, drafters, checkpoints, draft trees."""
