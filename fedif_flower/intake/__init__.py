"""What goes to a round's members and what is taken in of their replies; features wrap it."""
