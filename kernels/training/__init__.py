"""Training for real: teacher forcing, losses, the original schedule, and a small model that learns to copy and to reverse."""
