"""Sources of the lab's packages: the table (packages.yml), the payloads, and how they become .deb files."""
