"""From the registry to endpoints: what should serve, what does, and how one becomes the other."""
