"""What must hold on a real kernel mount."""
