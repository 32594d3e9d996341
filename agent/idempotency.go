package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"parley/store"
)

// chatOnce is Chat for an input with an idempotency key: of all who ask with it, one gets a turn. The key's row in SQL decides,
// which is written with the turn's first commit; what is refused here before that only spares a place in the session's line.
func (r *Runner) chatOnce(ctx context.Context, v *store.Viewer, in ChatInput) (*ChatReply, error) {
	hash, err := in.hash()
	if err != nil {
		return nil, err
	}
	key := store.IdempotencyKey{Key: *in.IdempotencyKey, Hash: hash}
	if reply, err := r.replay(ctx, v, key); reply != nil || err != nil {
		return reply, err
	}
	f, err := r.keys.enter(v.BusinessID, key)
	if err != nil {
		return nil, err
	}
	in.once = &key
	reply, err := r.chat(ctx, v, in, func(err error) { r.keys.leave(v.BusinessID, key, f, err) })
	if errors.Is(err, store.ErrKeyAnswered) { // by another replica, in the meantime
		return r.replay(ctx, v, key)
	}
	return reply, err
}

// joinEvery is how often a run that another replica has is looked at; joinSoon, how soon a key whose run is not known yet.
const (
	joinEvery = 250 * time.Millisecond
	joinSoon  = 10 * time.Millisecond
)

// Join is Chat for a client that asks again by itself, and wants one turn: if the turn of its idempotency key is running, here or
// elsewhere, it waits for that one's end, and gets its reply or its failure. It begins a turn only if no other of the key has begun.
func (r *Runner) Join(ctx context.Context, v *store.Viewer, in ChatInput) (*ChatReply, error) {
	for {
		reply, err := r.Chat(ctx, v, in)
		if !errors.Is(err, store.ErrKeyInFlight) || ctx.Err() != nil {
			return reply, err
		}
		var here *flightError
		var elsewhere *store.InFlightError
		switch {
		case errors.As(err, &here):
			err = here.flight.wait(ctx)
		case errors.As(err, &elsewhere):
			err = r.runEnds(ctx, v.BusinessID, elsewhere.RunID)
		default:
			err = pause(ctx, joinSoon) // another replica is about to write it
		}
		if err != nil {
			return nil, err
		}
	}
}

// runEnds waits for the end of a run. If it failed, that is the error.
func (r *Runner) runEnds(ctx context.Context, business, id string) error {
	for {
		run, err := r.cfg.Store.Run(ctx, business, id)
		switch {
		case err != nil:
			return err
		case run.Status == store.RunStatusFailed:
			return failure(*run.ErrorClass)
		case run.Status != store.RunRunning:
			return nil
		}
		if err := pause(ctx, joinEvery); err != nil {
			return err
		}
	}
}

// pause waits so long, or for ctx to end.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// replay is the first answer under a key; nil if there is none, and nobody is about to give it.
func (r *Runner) replay(ctx context.Context, v *store.Viewer, key store.IdempotencyKey) (*ChatReply, error) {
	a, err := r.cfg.Store.KeptAnswer(ctx, v.BusinessID, key)
	if a == nil || err != nil {
		return nil, err
	}
	return &ChatReply{
		Reply: a.Reply, SessionID: a.SessionID, MessageID: a.MessageID, RunID: a.RunID, Channel: a.Channel, Status: a.Status,
		Model: a.Model, Usage: a.Usage, Handoff: a.Handoff, Rendering: a.Rendering, Replayed: true,
	}, nil
}

// keysInFlight are the keys of the requests whose turns are not over in this process, from their arrival.
type keysInFlight struct {
	mu      sync.Mutex // guards flights
	flights map[string]*flight
}

// flight is one such request.
type flight struct {
	hash string
	over chan struct{} // closed when its turn is over, or did not come to be
	err  error         // what came of it then
}

// flightError is ErrKeyInFlight, and says which request of this process it is.
type flightError struct{ flight *flight }

func (e *flightError) Error() string { return store.ErrKeyInFlight.Message }

func (e *flightError) Unwrap() error { return store.ErrKeyInFlight }

func (k *keysInFlight) enter(business string, key store.IdempotencyKey) (*flight, error) {
	id := business + "/" + key.Key
	k.mu.Lock()
	defer k.mu.Unlock()
	switch other := k.flights[id]; {
	case other != nil && other.hash != key.Hash:
		return nil, store.ErrKeyReused
	case other != nil:
		return nil, &flightError{other}
	case k.flights == nil:
		k.flights = map[string]*flight{}
	}
	f := &flight{hash: key.Hash, over: make(chan struct{})}
	k.flights[id] = f
	return f, nil
}

func (k *keysInFlight) leave(business string, key store.IdempotencyKey, f *flight, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.flights, business+"/"+key.Key)
	f.err = err
	close(f.over)
}

// wait waits until the request is over. Its error is the request's own, unless there is an answer now, or it never came to a turn
// of its own because its caller went away or another replica had one.
func (f *flight) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-f.over:
	}
	for _, none := range []error{context.Canceled, context.DeadlineExceeded, store.ErrKeyAnswered, store.ErrKeyInFlight} {
		if errors.Is(f.err, none) {
			return nil
		}
	}
	return f.err
}

// hash is the same for inputs that ask for the same: REST and GraphQL, in whatever order and notation their JSON is.
func (in *ChatInput) hash() (string, error) {
	metadata, err := canonicalMetadata(in.Metadata)
	if err != nil {
		return "", err
	}
	doc, err := json.Marshal(struct {
		Agent, Message, Channel string
		Session                 *string
		Metadata                any
	}{in.AgentID, in.Message, string(in.Channel), in.SessionID, metadata})
	if err != nil {
		return "", fmt.Errorf("hash a chat: %w", err)
	}
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:]), nil
}

func canonicalMetadata(metadata *store.JSONObject) (any, error) {
	if metadata == nil {
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(*metadata))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return nil, fmt.Errorf("read a chat's metadata: %w", err)
	}
	return canonicalNumbers(v), nil
}

// canonicalNumbers writes each number in one way: 1.0, 1e0 and 1 are the same. Whole numbers keep all their digits, which ids
// need, and those that no float64 holds stay as they are.
func canonicalNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			v[name] = canonicalNumbers(value)
		}
	case []any:
		for i, value := range v {
			v[i] = canonicalNumbers(value)
		}
	case json.Number:
		if !strings.ContainsAny(string(v), ".eE") && v != "-0" {
			return v
		}
		f, err := v.Float64()
		switch {
		case err != nil:
			return v
		case f == 0:
			return json.Number("0")
		case -1<<53 < f && f < 1<<53 && f == math.Trunc(f):
			return json.Number(strconv.FormatInt(int64(f), 10))
		}
		return f
	}
	return v
}
