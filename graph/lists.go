package graph

import "parley/store"

// page are the arguments of a list; `first` has its default in the schema, and null means the same.
func page(first *int, after *string) store.PageInput {
	p := store.PageInput{First: store.DefaultPage, After: after}
	if first != nil {
		p.First = *first
	}
	return p
}

// orNull turns "there is none" into null: what a query by id answers for an unknown id, and for another business's.
func orNull[T any](v *T, err error) (*T, error) {
	if e, ok := store.AsError(err); ok && e.Code == store.CodeNotFound {
		return nil, nil
	}
	return v, err
}

// keys and pick serve the batch resolvers: the keys of all objects, for one query; and its rows, in the objects' order.
func keys[T any](objs []T, key func(T) string) []string {
	out := make([]string, len(objs))
	for i, o := range objs {
		out[i] = key(o)
	}
	return out
}

func pick[T, R any](objs []T, of map[string]R, key func(T) string) []R {
	out := make([]R, len(objs))
	for i, o := range objs {
		out[i] = of[key(o)]
	}
	return out
}

// replyOf is the id of a run's reply; empty without one.
func replyOf(run *store.Run) string {
	if run.ReplyID == nil {
		return ""
	}
	return *run.ReplyID
}
