package modeltest

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/agent"
	"parley/store"
)

// Subject is the model that Run puts to the test.
type Subject struct {
	Model agent.Model // calls a tool at "order", and tells what it has brought
	Slow  agent.Model // does not answer within this minute
}

// LookUp is the tool that models are given.
var LookUp = agent.Tool{
	Name: "look_up", Description: "Looks an order up.", Triggers: []string{"order"},
	Parameters: store.JSONObject(`{"type":"object","properties":{"question":{"type":"string"}},"required":["question"]}`),
}

// Ask is a request with a message.
func Ask(message string) agent.Request {
	return agent.Request{
		Agent: &store.Agent{ID: "agt_1"}, Channel: store.WhatsApp,
		Messages: []agent.Message{{Author: store.AuthorLead, Text: message}},
	}
}

// Run holds a model to what every model promises.
func Run(t *testing.T, s Subject) {
	t.Run("a message gets a text", func(t *testing.T) {
		t.Parallel()
		reply := generate(t, s.Model, Ask("Hello"))
		if strings.TrimSpace(reply.Text) == "" || len(reply.Calls) != 0 || reply.Truncated || reply.Model == "" {
			t.Errorf("got %+v", reply)
		}
		switch used := reply.Usage; used.Source {
		case store.UsageNone:
			if used.InputTokens != 0 || used.OutputTokens != 0 {
				t.Errorf("it uses none, and so many: %+v", used)
			}
		case store.UsageProvider, store.UsageEstimated:
			if used.InputTokens <= 0 || used.OutputTokens <= 0 {
				t.Errorf("it uses %+v", used)
			}
		default:
			t.Errorf("it does not say what it used: %+v", used)
		}
	})
	t.Run("a tool is called, and what it brings is told", func(t *testing.T) {
		t.Parallel()
		req := Ask("Where is my order?")
		req.Tools = []agent.Tool{LookUp}
		reply := generate(t, s.Model, req)
		if len(reply.Calls) != 1 || reply.Calls[0].Name != LookUp.Name || reply.Calls[0].ID == "" {
			t.Fatalf("the calls: %+v", reply.Calls)
		}
		var arguments map[string]string
		if err := json.Unmarshal(reply.Calls[0].Arguments, &arguments); err != nil || arguments["question"] == "" {
			t.Errorf("the arguments %s: %v", reply.Calls[0].Arguments, err)
		}
		const result = "It left our house on Monday."
		req.Steps = []agent.Step{{Text: reply.Text, Calls: reply.Calls, Results: []agent.Result{{CallID: reply.Calls[0].ID, Content: result}}}}
		if reply := generate(t, s.Model, req); len(reply.Calls) != 0 || !strings.Contains(reply.Text, result) {
			t.Errorf("the answer: %+v", reply)
		}
	})
	t.Run("a deadline is kept", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		begin := time.Now()
		reply, err := s.Slow.Generate(ctx, Ask("Hello"))
		if !errors.Is(err, agent.ErrModelTimeout) || errors.Is(err, agent.ErrModelFailed) || time.Since(begin) > 30*time.Second {
			t.Errorf("after %v: %+v, %v", time.Since(begin), reply, err)
		}
	})
	t.Run("a cancelled caller is no timeout", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		go cancel() // before it begins, or while it waits
		if reply, err := s.Slow.Generate(ctx, Ask("Hello")); !errors.Is(err, context.Canceled) || errors.Is(err, agent.ErrModelTimeout) {
			t.Errorf("got %+v, %v", reply, err)
		}
	})
	t.Run("many at once", func(t *testing.T) {
		t.Parallel()
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() { generate(t, s.Model, Ask("Hello")) })
		}
		wg.Wait()
	})
}

// generate makes a step twice, with and without a listener: the reply is the same, and what is heard is its text.
func generate(t *testing.T, model agent.Model, req agent.Request) agent.Reply {
	t.Helper()
	reply, err := model.Generate(t.Context(), req)
	if err != nil {
		t.Error(err)
	}
	var heard strings.Builder
	req.Text = func(delta string) {
		if delta == "" {
			t.Error("nothing was told")
		}
		heard.WriteString(delta)
	}
	streamed, err := model.Generate(t.Context(), req)
	if err != nil || heard.String() != streamed.Text {
		t.Errorf("heard %q, then %q, %v", heard.String(), streamed.Text, err)
	}
	if diff := cmp.Diff(reply, streamed); diff != "" {
		t.Error(diff)
	}
	return reply
}
