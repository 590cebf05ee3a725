"""Loss landscapes and trajectories of finished runs."""
