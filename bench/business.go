package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
)

// business is one that a server serves, with an agent of its own.
type business struct{ key, token, agent string }

// demo is the one that every server has.
var demo = business{apiKey, token, "demo"}

// business makes another one.
func (s *server) business(name string) (b business, err error) {
	create := exec.CommandContext(s.ctx, s.cmd.Path, "business", "create", name)
	create.Dir, create.Env = s.cmd.Dir, s.cmd.Env
	out, err := create.Output()
	if err != nil {
		return b, fmt.Errorf("make a business: %w", err)
	}
	var id string
	if _, err := fmt.Sscanf(string(out), "business %s\nAPI key %s\naccess token %s\n", &id, &b.key, &b.token); err != nil {
		return b, fmt.Errorf("make a business: %q: %w", out, err)
	}
	answer, err := s.postAs(b.token, "/graphql", map[string]any{"query": `mutation { createAgent(input: {name: "bench"}) { id } }`})
	if err != nil {
		return b, err
	}
	var made struct {
		Data struct{ CreateAgent struct{ ID string } }
	}
	if err := json.Unmarshal(answer, &made); err != nil || made.Data.CreateAgent.ID == "" {
		return b, fmt.Errorf("make an agent: %.200s", answer)
	}
	b.agent = made.Data.CreateAgent.ID
	return b, nil
}
