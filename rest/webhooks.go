package rest

import (
	"net/http"
	"strings"

	"parley/store"
	"parley/store/hook"
)

// webhookOut is a webhook endpoint as the specification has it.
type webhookOut struct {
	ID        string            `json:"id"`
	URL       string            `json:"url"`
	Events    []store.EventType `json:"events"`
	CreatedAt store.Time        `json:"created_at"`
	Secret    string            `json:"secret,omitempty"` // in the answer to its creation alone
}

// createWebhook is POST /v1/webhooks.
func (a *API) createWebhook(w http.ResponseWriter, r *http.Request) error {
	v, err := store.Operator(r.Context())
	if err != nil {
		return err
	}
	b, err := read(w, r)
	if err != nil {
		return err
	}
	var in hook.EndpointInput
	if url, ok := b.text("url", true); ok {
		in.URL = &url
		if strings.Contains(url, "@") { // user info: a password
			b.secret = "url"
		}
	}
	if elements, ok := b.list("events"); ok {
		in.Events = make([]store.EventType, 0, len(elements))
		for i, raw := range elements {
			if kind, ok := oneOf(b, raw, store.EventTypes, "events", i); ok {
				in.Events = append(in.Events, kind)
			}
		}
	}
	if err := b.check(a.Hooks.CheckEndpoint(in)); err != nil {
		return err
	}
	endpoint, secret, err := a.Hooks.CreateEndpoint(r.Context(), v, in)
	if err != nil {
		return err
	}
	write(w, http.StatusCreated, webhookOut{endpoint.ID, endpoint.URL, endpoint.Events, endpoint.CreatedAt, secret})
	return nil
}

// listWebhooks is GET /v1/webhooks.
func (a *API) listWebhooks(w http.ResponseWriter, r *http.Request) error {
	v, err := store.Reader(r.Context())
	if err != nil {
		return err
	}
	endpoints, err := a.Hooks.Endpoints(r.Context(), v.BusinessID)
	if err != nil {
		return err
	}
	out := make([]webhookOut, len(endpoints))
	for i, e := range endpoints {
		out[i] = webhookOut{ID: e.ID, URL: e.URL, Events: e.Events, CreatedAt: e.CreatedAt}
	}
	write(w, http.StatusOK, out)
	return nil
}
