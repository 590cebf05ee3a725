"""A client's steps: the loop over batches, optimisers, and DP-SGD's gradients."""
