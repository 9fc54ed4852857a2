"""What a model has learned, as pure functions of its weights and outputs."""
