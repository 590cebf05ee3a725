"""How well models answer: per client, over clients, and over all rows."""

from fedtailor.results.metrics.over_clients import accuracies, best_round, summarise

__all__ = ["accuracies", "best_round", "summarise"]
