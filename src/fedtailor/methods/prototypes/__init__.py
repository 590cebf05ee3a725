"""Methods whose clients exchange mean features of classes: prototypes."""
