"""What the site needs besides Sphinx, MyST and furo."""
