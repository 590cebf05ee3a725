"""Methods whose personal models are held near a shared one."""
