"""One module for each kind of file that rows are read from."""
