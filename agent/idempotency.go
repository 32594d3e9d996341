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
	done, err := r.keys.enter(v.BusinessID, key)
	if err != nil {
		return nil, err
	}
	defer done()
	in.IdempotencyKey, in.once = nil, &key
	reply, err := r.Chat(ctx, v, in)
	if errors.Is(err, store.ErrKeyAnswered) { // by another replica, in the meantime
		return r.replay(ctx, v, key)
	}
	return reply, err
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

// keysInFlight are the keys of the requests that this process has not answered yet, from their arrival.
type keysInFlight struct {
	mu     sync.Mutex // guards hashes
	hashes map[string]string
}

func (k *keysInFlight) enter(business string, key store.IdempotencyKey) (leave func(), err error) {
	id := business + "/" + key.Key
	k.mu.Lock()
	defer k.mu.Unlock()
	switch hash, ok := k.hashes[id]; {
	case ok && hash != key.Hash:
		return nil, store.ErrKeyReused
	case ok:
		return nil, store.ErrKeyInFlight
	case k.hashes == nil:
		k.hashes = map[string]string{}
	}
	k.hashes[id] = key.Hash
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.hashes, id)
	}, nil
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
