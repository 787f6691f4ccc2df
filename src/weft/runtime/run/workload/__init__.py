"""What a run trains: one network that all devices share, or one for each device."""
