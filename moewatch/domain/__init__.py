"""What the rooms say to each other: frozen records without I/O and without a clock."""
