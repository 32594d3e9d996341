package main

import (
	"context"
	"fmt"
	"io"

	"parley/agent"
	"parley/store"
)

// bootstrap makes the first business and its demo agent in an empty database, and prints what a newcomer needs, once.
func bootstrap(ctx context.Context, st *store.Store, s *Settings, address string, stdout io.Writer) error {
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
		_, err = fmt.Fprintf(stdout, "Parley is running at %s\n", address)
		return err
	}
	_, err = fmt.Fprintf(stdout, `Parley is running at %[1]s

This is its first start. It made the business "demo" with the agent "demo", and these secrets, which are shown this once:

  API key       %[2]s
  access token  %[3]s

Say something to the agent:

  curl -sS %[1]s/agents/demo/chat -H 'X-API-Key: %[2]s' -H 'Content-Type: application/json' -d '{"message": "When are you open on Saturday?", "channel": "whatsapp"}'

`, address, made.APIKey, made.Token)
	return err
}
