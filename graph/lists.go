package graph

import (
	"parley/store"
	"parley/store/hook"
)

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

// What resolvers look other rows up by: see together.
func idOfAgent(a *store.Agent) string       { return a.ID }
func idOfEndpoint(p *hook.Endpoint) string  { return p.ID }
func keyOfDelivery(d *hook.Delivery) string { return d.Key() }
func endpointOf(d *hook.Delivery) string    { return d.EndpointID }
func eventOf(d *hook.Delivery) string       { return d.EventID }

// replyOf is the id of a run's reply; empty without one.
func replyOf(run *store.Run) string {
	if run.ReplyID == nil {
		return ""
	}
	return *run.ReplyID
}
