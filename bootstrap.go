package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"parley/agent"
	"parley/store"
)

// bootstrap makes the first business and its demo agent in an empty database, and prints what a newcomer needs, once. In
// any other database it makes nothing, and says so where an operator could expect otherwise.
func bootstrap(ctx context.Context, st *store.Store, s *Settings, address string, stdout io.Writer, log *slog.Logger) error {
	name, prompt, knowledge := agent.Demo()
	demo := &store.Agent{
		ID: "demo", Name: name, Prompt: prompt, Knowledge: knowledge, ChannelProfiles: []store.ChannelProfile{},
		OnConcurrent: store.Enqueue, Model: store.Model{Provider: store.ProviderEmbedded},
	}
	if s.openAI() {
		demo.Model.Provider = store.ProviderOpenAI
	}
	made, err := st.CreateBusiness(ctx, store.BusinessInput{
		Name: "demo", APIKey: s.BootstrapAPIKey, Token: s.BootstrapToken, Agent: demo, IfEmpty: true,
	})
	if err != nil {
		return err
	}
	if made == nil {
		// A demo agent that nobody has changed follows the operator's settings: a key that was set later counts too.
		if err := st.SetUntouchedModel(ctx, demo.ID, demo.Model.Provider); err != nil {
			return err
		}
		if err := explain(ctx, st, s, log); err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, `Parley is running at %[1]s

The page is at %[1]s/ and asks for an access token. "parley token create" (or "go run . token create") makes one
beside this server, and prints a link that signs in.

`, address)
		return err
	}
	_, err = fmt.Fprintf(stdout, `Parley is running at %[1]s

This is its first start. It made the business "demo" with the agent "demo", and these secrets, which are shown this once:

  API key       %[2]s
  access token  %[3]s

Say something to the agent:

  curl -sS %[1]s/agents/demo/chat -H 'X-API-Key: %[2]s' -H 'Content-Type: application/json' -d '{"message": "When are you open on Saturday?", "channel": "whatsapp"}'

Look around in the browser: queries, and the events live (this link holds the access token):

  %[4]s

If they are lost: "parley token create" (or "go run . token create") makes another token at any time.

`, address, made.APIKey, made.Token, signIn(address, made.Token))
	return err
}

// explain logs why a start made no demo business, and warns of bootstrap secrets that open nothing: they count on the first
// start alone.
func explain(ctx context.Context, st *store.Store, s *Settings, log *slog.Logger) error {
	businesses, bootstrapped, err := st.Origin(ctx)
	if err != nil {
		return err
	}
	if !bootstrapped {
		log.Info("no demo business was made: the database had businesses before its first start", "businesses", businesses)
	}
	for _, given := range []struct {
		setting, secret string
		kind            store.CredentialKind
	}{
		{"PARLEY_BOOTSTRAP_API_KEY", s.BootstrapAPIKey, store.KindAPIKey},
		{"PARLEY_BOOTSTRAP_TOKEN", s.BootstrapToken, store.KindAccessToken},
	} {
		if given.secret == "" {
			continue
		}
		live, err := st.IsLive(ctx, given.kind, given.secret)
		if err != nil {
			return err
		}
		if !live {
			log.Warn(given.setting + " OPENS NOTHING: it is no credential of this database, which took its first ones when it was made. Callers that use it are refused")
		}
	}
	return nil
}
