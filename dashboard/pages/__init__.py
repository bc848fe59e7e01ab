"""One page a file: a function `page(view)` that draws what its name says for the view chosen in the sidebar."""
