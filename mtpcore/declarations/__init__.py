"""What plugins declare: models, drafters, checkpoints, draft trees."""
