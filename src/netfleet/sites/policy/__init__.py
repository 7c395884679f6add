"""What a site decides for itself, whatever the plan says: its policy, and who and what it lets in."""
