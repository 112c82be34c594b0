"""The commands. `mount` composes the rooms in one exit stack and one nursery."""
