"""What the papers say: experiments, settings and published numbers, as TOML."""
