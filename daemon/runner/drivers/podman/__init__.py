"""The driver `podman`, also registered as `docker`."""
