"""A network as it is called: what it draws, and which operators it is made of."""
