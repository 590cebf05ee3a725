"""A table beside the paper's: numbers, pages, pictures, LaTeX."""
