package modeltest

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/agent"
	"parley/agent/provider"
	"parley/store"
)

// ask asks a server that answers so, and returns the reply with what was heard of it.
func (d Dialect) ask(t *testing.T, answer http.HandlerFunc, req agent.Request) (reply agent.Reply, heard []string, err error) {
	t.Helper()
	server := NewServer(t, answer)
	req.Text = func(delta string) { heard = append(heard, delta) }
	reply, err = d.operated(t, server.URL).Generate(t.Context(), req)
	if n := len(server.Seen()); n != 1 {
		t.Errorf("%d requests were sent", n)
	}
	return reply, heard, err
}

// testAnswers has every good answer come as a stream, with line ends of both kinds, and as one document.
func (d Dialect) testAnswers(t *testing.T) {
	counted := store.TokenUsage{InputTokens: 12, OutputTokens: 5, Source: store.UsageProvider}
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	parallel := []Call{{"c1", "look_up", []string{`{"ques`, `tion":"a"`, `}`}}, {"c2", "look_up", []string{`{"question":"b"}`}}, {"c3", "other", nil}}
	called := []agent.Call{{ID: "c1", Name: "look_up", Arguments: raw(`{"question":"a"}`)}, {ID: "c2", Name: "look_up", Arguments: raw(`{"question":"b"}`)}, {ID: "c3", Name: "other", Arguments: raw(`{}`)}}
	for name, c := range map[string]struct {
		answer Answer
		want   agent.Reply
	}{
		"a text": {hello, agent.Reply{Text: "Grüße, 世界 🧶!", Usage: counted}},
		"a text that was not counted": {
			Answer{Deltas: []string{"Grüße!"}},
			agent.Reply{Text: "Grüße!", Usage: store.TokenUsage{InputTokens: 1, OutputTokens: 2, Source: store.UsageEstimated}},
		},
		"a text that was counted badly": {
			Answer{Deltas: []string{"Grüße!"}, In: -7, Out: 1},
			agent.Reply{Text: "Grüße!", Usage: store.TokenUsage{InputTokens: 1, OutputTokens: 2, Source: store.UsageEstimated}},
		},
		"a text that was counted beyond belief": {
			Answer{Deltas: []string{"Grüße!"}, In: 1 << 62, Out: 1 << 62},
			agent.Reply{Text: "Grüße!", Usage: store.TokenUsage{InputTokens: 1, OutputTokens: 2, Source: store.UsageEstimated}},
		},
		"a text that the limit ended":   {Answer{Deltas: []string{"Grü"}, Stop: Limit, In: 12, Out: 5}, agent.Reply{Text: "Grü", Truncated: true, Usage: counted}},
		"calls":                         {Answer{Calls: parallel, Stop: Called, In: 12, Out: 5}, agent.Reply{Calls: called, Usage: counted}},
		"a text and calls":              {Answer{Deltas: []string{"One ", "moment."}, Calls: parallel, Stop: Called, In: 12, Out: 5}, agent.Reply{Text: "One moment.", Calls: called, Usage: counted}},
		"calls that were not counted":   {Answer{Calls: parallel[2:], Stop: Called}, agent.Reply{Calls: called[2:], Usage: store.TokenUsage{InputTokens: 1, OutputTokens: 2, Source: store.UsageEstimated}}},
		"a call without an id":          {Answer{Calls: []Call{{"", "x", nil}}, Stop: Called, In: 12, Out: 5}, agent.Reply{Calls: []agent.Call{{ID: "call_1", Name: "x", Arguments: raw(`{}`)}}, Usage: counted}},
		"a call that the limit cut off": {Answer{Calls: []Call{{"c1", "x", []string{`{"a":`}}}, Stop: Limit, In: 12, Out: 5}, agent.Reply{Calls: []agent.Call{{ID: "c1", Name: "x", Arguments: raw(`{"a":`)}}, Truncated: true, Usage: counted}},
	} {
		stream := join(d.Stream(c.answer))
		c.want.Model = d.Prefix + "test-1"
		if c.answer.Model != "" {
			c.want.Model = d.Prefix + c.answer.Model
		}
		bodies := map[string]string{"streamed": stream, "streamed with CRLF": strings.ReplaceAll(stream, "\n", "\r\n"), "after white space": "\n\r\n " + "\n" + stream}
		if valid(c.answer) {
			bodies["whole"] = " \n" + d.Whole(c.answer)
		}
		for how, body := range bodies {
			reply, heard, err := d.ask(t, Says(body), Ask("Hi"))
			if diff := cmp.Diff(c.want, reply); diff != "" || err != nil {
				t.Errorf("%s, %s: %v\n%s", name, how, err, diff)
			}
			want := c.answer.Deltas
			if how == "whole" && len(want) > 0 {
				want = []string{strings.Join(want, "")}
			}
			if diff := cmp.Diff(want, heard); diff != "" {
				t.Errorf("%s, %s: heard %s", name, how, diff)
			}
		}
	}
}

// valid says whether the arguments of all calls are JSON: in a document, some protocols can hold no others.
func valid(a Answer) bool {
	for _, call := range a.Calls {
		if s := strings.Join(call.Pieces, ""); s != "" && !json.Valid([]byte(s)) {
			return false
		}
	}
	return true
}

// testTextIsToldAsItComes has a server send each event when what came before has been heard.
func (d Dialect) testTextIsToldAsItComes(t *testing.T) {
	heard := make(chan string)
	server := NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		waiting := hello.Deltas
		for _, event := range d.Stream(hello) {
			_, _ = w.Write([]byte(event))
			_ = http.NewResponseController(w).Flush()
			if len(waiting) == 0 || !strings.Contains(event, waiting[0]) {
				continue
			}
			select {
			case delta := <-heard:
				if delta != waiting[0] {
					t.Errorf("heard %q, want %q", delta, waiting[0])
				}
			case <-time.After(limit):
				t.Error("what was sent is not heard")
			case <-r.Context().Done():
			}
			waiting = waiting[1:]
		}
	})
	req := Ask("Hi")
	req.Text = func(delta string) { heard <- delta }
	if reply, err := d.operated(t, server.URL).Generate(t.Context(), req); err != nil || reply.Text != strings.Join(hello.Deltas, "") {
		t.Errorf("got %+v, %v", reply, err)
	}
}

func (d Dialect) testBytes(t *testing.T) {
	for _, body := range []string{join(d.Stream(hello)), d.Whole(hello)} {
		reply, heard, err := d.ask(t, inBytes(body), Ask("Hi"))
		if want := strings.Join(hello.Deltas, ""); err != nil || reply.Text != want || strings.Join(heard, "") != want {
			t.Errorf("got %+v, %q, %v", reply, heard, err)
		}
	}
}

// testBrokenAfterTheStop: once the model has said why it stopped, its answer stands.
func (d Dialect) testBrokenAfterTheStop(t *testing.T) {
	answer := hello
	answer.In, answer.Out = 0, 0 // the count may come later
	events := d.Stream(answer)
	stream := join(events[:len(events)-1]) // all but the farewell
	for _, handler := range []http.HandlerFunc{cut(stream), cut(stream + "data: {"), Says(stream + "event: message_delta\ndata: {\n\n")} {
		if reply, _, err := d.ask(t, handler, Ask("Hi")); err != nil || reply.Text != strings.Join(hello.Deltas, "") {
			t.Errorf("got %+v, %v", reply, err)
		}
	}
}

func (d Dialect) testModelNames(t *testing.T) {
	for word, want := range map[string]string{
		"meta/llama-4": "meta/llama-4", "": "test-1", "a\x00b": "test-1", "a\u202eb": "test-1", strings.Repeat("x", 201): "test-1",
	} {
		reply, _, err := d.ask(t, d.says(Answer{Model: word, Deltas: []string{"Hi"}}), Ask("Hi"))
		if err != nil || reply.Model != d.Prefix+want {
			t.Errorf("%q: got %q, %v, want %q", word, reply.Model, err, want)
		}
	}
	mine := "test-3"
	req := Ask("Hi")
	req.Agent.Model.Name = &mine
	if reply, _, err := d.ask(t, d.says(Answer{Deltas: []string{"Hi"}}), req); err != nil || reply.Model != d.Prefix+mine {
		t.Errorf("the agent's own: got %q, %v", reply.Model, err)
	}
}

func (d Dialect) testTimeoutSeconds(t *testing.T) {
	for timeout, want := range map[int]time.Duration{1: time.Second, 7: 7 * time.Second, 3600: time.Minute, 1 << 62: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			silent := &http.Client{Transport: RoundTrip(func(req *http.Request) (*http.Response, error) {
				<-req.Context().Done()
				return nil, req.Context().Err()
			})}
			req := Ask("Hi")
			req.Agent.Model.TimeoutSeconds = &timeout
			ctx, cancel := deadline(t, time.Minute)
			defer cancel()
			start := time.Now()
			_, err := d.New(provider.Config{OperatorClient: silent}).Generate(ctx, req)
			if failed, _, timedOut := classes(err); !timedOut || failed || time.Since(start) != want {
				t.Errorf("%d s: got %v after %v, want a timeout after %v", timeout, err, time.Since(start), want)
			}
		})
	}
}
