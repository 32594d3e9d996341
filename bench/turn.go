package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	modelThinks = 30 * time.Millisecond // to its first token
	modelToken  = 3 * time.Millisecond  // from one to the next
	modelTokens = 10
	turnsEach   = 8 // of a session: then it begins a new one, so that histories stay short
)

// turnShapes measure what a turn costs over its model's own time, against a bare proxy to the same model server: Parley stores
// each turn durably, with its events, and the proxy nothing. Every session must get its own answers and have its own history, a
// thousand at once too.
func turnShapes(*rig) (all []shape) {
	for _, sessions := range []int{16, 256, 1000} {
		s := shape{name: fmt.Sprintf("%d sessions, streamed", sessions), run: func(ctx context.Context, r *rig, of side) (figures, error) {
			on, model, address, err := serveModel(ctx)
			if err != nil {
				return nil, err
			}
			defer on.end()
			s, err := r.start(ctx, of, "OPENAI_BASE_URL="+address+"/v1")
			if err != nil {
				return nil, err
			}
			defer s.end()
			return model.drive(ctx, sessions, r.measure, func(token, session string) (*http.Request, error) { return streamedChat(ctx, s.url, token, session) })
		}}
		if sessions < 1000 {
			s.bare = func(ctx context.Context, r *rig) (figures, error) {
				on, model, address, err := serveModel(ctx)
				if err != nil {
					return nil, err
				}
				defer on.end()
				target, err := url.Parse(address)
				if err != nil {
					return nil, err
				}
				proxied, err := listen(on, &httputil.ReverseProxy{
					Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, FlushInterval: -1, Transport: &http.Transport{MaxIdleConnsPerHost: 1000},
				})
				if err != nil {
					return nil, err
				}
				return model.drive(ctx, sessions, r.measure, func(token, _ string) (*http.Request, error) { return completion(ctx, proxied, token) })
			}
		}
		all = append(all, s)
	}
	return all
}

func serveModel(ctx context.Context) (on *stage, model *modelServer, address string, err error) {
	on, model = newStage(ctx), &modelServer{spans: map[string]span{}}
	address, err = listen(on, model)
	return on, model, address, err
}

// modelServer speaks chat completions: it repeats the last word it was told, a token of the caller's. It refuses a history that
// holds the token of another session.
type modelServer struct {
	mu    sync.Mutex
	spans map[string]span // of its answers, by the caller's token
}

// span is when the model server was asked, when it wrote the first token of its answer, and when the last.
type span struct{ asked, first, done time.Time }

// callersToken is one: the first number counts a session's turns, the second is the session.
var callersToken = regexp.MustCompile(`Token\d+of(\d+)end`)

func (m *modelServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Messages []struct {
			Content string `json:"content"`
		} `json:"messages"`
	}
	if json.NewDecoder(r.Body).Decode(&in) != nil || len(in.Messages) == 0 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	times := span{asked: time.Now()}
	token, session := "", ""
	for _, message := range in.Messages {
		for _, found := range callersToken.FindAllStringSubmatch(message.Content, -1) {
			if session != "" && session != found[1] {
				http.Error(w, "a history of two sessions: "+token+" and "+found[0], http.StatusBadRequest)
				return
			}
			token, session = found[0], found[1]
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	send := func(content, finish string) {
		delta := map[string]any{"content": content}
		choice := map[string]any{"index": 0, "delta": delta, "finish_reason": nil}
		if finish != "" {
			choice["finish_reason"] = finish
		}
		raw, _ := json.Marshal(map[string]any{"id": "c", "object": "chat.completion.chunk", "model": "bench", "choices": []any{choice}})
		_, _ = fmt.Fprintf(w, "data: %s\n\n", raw)
		_ = flush.Flush()
	}
	if pause(r.Context(), modelThinks) != nil {
		return
	}
	times.first = time.Now()
	send(token, "")
	for range modelTokens {
		if pause(r.Context(), modelToken) != nil {
			return
		}
		send(" word", "")
	}
	times.done = time.Now()
	m.mu.Lock()
	m.spans[token] = times
	m.mu.Unlock()
	send("", "stop")
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// drive returns what was measured beyond the model's own time, of whole turns and of first tokens.
func (m *modelServer) drive(ctx context.Context, sessions int, measure time.Duration, request func(token, session string) (*http.Request, error)) (figures, error) {
	var mu sync.Mutex
	var whole, first []time.Duration
	var failed error
	var wg sync.WaitGroup
	until := time.Now().Add(measure)
	for i := range sessions {
		wg.Go(func() {
			session := ""
			for n := 0; time.Now().Before(until) && ctx.Err() == nil; n++ {
				if n%turnsEach == 0 {
					session = ""
				}
				token := fmt.Sprintf("Token%dof%dend", n, i)
				began := time.Now()
				heard, next, err := m.once(request, token, session)
				took := time.Since(began)
				session = next
				m.mu.Lock()
				model := m.spans[token]
				delete(m.spans, token)
				m.mu.Unlock()
				mu.Lock()
				if err != nil {
					failed = errors.Join(failed, err)
					mu.Unlock()
					return
				}
				whole, first = append(whole, took-model.done.Sub(model.asked)), append(first, heard.Sub(model.first))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return nil, failed
	}
	n := float64(len(whole))
	f := append(timesOf("over the model's own time", whole, 50, 99), timesOf("first token", first, 50, 99)...)
	return append(f, figure{"turns a second", n / measure.Seconds()}), nil
}

// once makes a request, and returns when its token was first heard, and the session to go on with.
func (m *modelServer) once(request func(token, session string) (*http.Request, error), token, session string) (heard time.Time, next string, err error) {
	req, err := request(token, session)
	if err != nil {
		return heard, "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return heard, "", err
	}
	defer func() { _ = res.Body.Close() }()
	var all bytes.Buffer
	buf := make([]byte, 4096)
	for {
		n, err := res.Body.Read(buf)
		all.Write(buf[:n])
		if heard.IsZero() && bytes.Contains(all.Bytes(), []byte(token)) {
			heard = time.Now()
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return heard, "", fmt.Errorf("%s after %q: %w", req.URL, all.String(), err)
		}
	}
	for _, found := range callersToken.FindAllString(all.String(), -1) {
		if found != token {
			return heard, "", fmt.Errorf("the answer to %s holds %s: %.300s", token, found, &all)
		}
	}
	if res.StatusCode != http.StatusOK || heard.IsZero() {
		return heard, "", fmt.Errorf("status %d, without the answer to %s: %.300s", res.StatusCode, token, &all)
	}
	if found := sessionOf.FindSubmatch(all.Bytes()); found != nil {
		next = string(found[1])
	}
	return heard, next, nil
}

var sessionOf = regexp.MustCompile(`"session_id":"([^"]+)"`)

func streamedChat(ctx context.Context, url, token, session string) (*http.Request, error) {
	body := `{"message": "Say ` + token + `", "channel": "whatsapp"}`
	if session != "" {
		body = `{"message": "Say ` + token + `", "channel": "whatsapp", "session_id": "` + session + `"}`
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/agents/demo/chat", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = http.Header{"X-Api-Key": {demo.key}, "Content-Type": {"application/json"}, "Accept": {"text/event-stream"}}
	return req, nil
}

func completion(ctx context.Context, url, token string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions",
		strings.NewReader(`{"model": "bench", "stream": true, "messages": [{"role": "user", "content": "Say `+token+`"}]}`))
	if err != nil {
		return nil, err
	}
	req.Header = http.Header{"Content-Type": {"application/json"}}
	return req, nil
}
