"""Methods that share some blocks of the network and keep the others."""
