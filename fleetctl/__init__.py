"""fleetctl keeps a fleet of GPU nodes at the versions its admins declared."""
