// Package deploy holds what runs Parley in production: an image, a compose file, systemd units, and
// an nginx configuration. Its tests try them, as far as that goes without Docker and a running
// systemd.
package deploy
