"""The member's own side: what its host allows, keeps and inspects, whatever server and app do."""
