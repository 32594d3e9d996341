package graph

// SDL is the schema's text.
func SDL() string { return sources[0].Input }
