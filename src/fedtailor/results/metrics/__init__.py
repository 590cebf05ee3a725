"""How well models answer: per client, over clients, and over all rows."""
