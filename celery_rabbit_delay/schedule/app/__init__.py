"""What an app and its workers have of the schedule."""
