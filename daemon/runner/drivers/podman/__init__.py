"""The driver `podman`, which answers to the name `docker` as well."""
