"""Whether training together helped a site: models on the site's own test rows, and the table of all sites."""
