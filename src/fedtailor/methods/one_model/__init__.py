"""Methods that learn one model for all, fine-tuned or not."""
