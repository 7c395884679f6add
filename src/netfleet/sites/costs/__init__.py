"""What a training costs a site: computed steps, bytes of messages, disk, memory, and the seconds of a round."""
