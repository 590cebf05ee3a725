"""Real federations: the same method files across machines, over Flower.

A site keeps its data, its state and its model; the coordinator keeps the server's state. Between
them travel packets: a small header and flat named arrays. Flower carries them and is imported late,
in `coordinator.app`, `coordinator.carrier` and `site.app` alone.
"""
