"""Everything a run depends on: one record, checked, kept in files."""

from fedtailor.results.config.checked import check_class_weights, make_config
from fedtailor.results.config.files import as_toml, config_of, read_config, write_config
from fedtailor.results.config.record import (
    MERE_PLACE,
    MOST_SEEDS,
    PATHS,
    TUNABLE,
    WHO_WORKS,
    Config,
    settings,
)

__all__ = [
    "MERE_PLACE",
    "MOST_SEEDS",
    "PATHS",
    "TUNABLE",
    "WHO_WORKS",
    "Config",
    "as_toml",
    "check_class_weights",
    "config_of",
    "make_config",
    "read_config",
    "settings",
    "write_config",
]
