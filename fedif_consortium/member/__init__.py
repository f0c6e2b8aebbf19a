"""What a member's own host allows, keeps and looks at: not the server's, nor the app's."""
