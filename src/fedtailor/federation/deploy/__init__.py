"""From nothing to running processes: keys, files of a project, and who starts what."""
