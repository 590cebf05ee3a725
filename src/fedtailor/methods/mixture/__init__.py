"""Methods that mix a shared model with a personal one."""
