"""What there is: the sources, their columnar index, and the selection of what is in the view."""
