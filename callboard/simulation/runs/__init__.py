"""What tests that live many seeds or schedules have in common."""
