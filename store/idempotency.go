package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/uptrace/bun"
)

// An idempotency key makes a turn happen once, however often it is asked for. Its row is written in the turn's first commit,
// with the run; in the second it gets the answer, or goes if the run failed. So the row of a turn that a crash left behind goes
// when the sweeper ends its run, and needs no lease of its own.

// IdempotencyKey is a key that a caller named, with the hash of the request that it stands for.
type IdempotencyKey struct {
	Key  string
	Hash string
}

// Answer is what a finished turn answered, as it is kept under its key.
type Answer struct {
	Reply     string     `json:"reply"`
	SessionID string     `json:"session_id"`
	MessageID string     `json:"message_id"`
	RunID     string     `json:"run_id"`
	Channel   Channel    `json:"channel"`
	Status    RunStatus  `json:"status"`
	Model     string     `json:"model"`
	Usage     TokenUsage `json:"usage"`
	Handoff   *Handoff   `json:"handoff,omitempty"`
	Rendering *Rendering `json:"rendering,omitempty"`
}

func answerOf(run *Run, reply *Message) Answer {
	return Answer{
		Reply: reply.Text, SessionID: *run.SessionID, MessageID: reply.ID, RunID: run.ID, Channel: run.Channel, Status: run.Status,
		Model: run.Model, Usage: run.TokenUsage, Handoff: run.Handoff(), Rendering: reply.Rendering,
	}
}

const (
	keptAnswers = 24 * time.Hour // how long an answer is kept under its key
	maxKey      = 255            // characters of a key
)

// Refusals of an idempotency key.
var (
	ErrKeyReused   = refuse(CodeInvalid, "idempotency_key_reused", "this idempotency key was used for another request: use a new one")
	ErrKeyInFlight = refuse(CodeConflict, "idempotency_in_flight", "the first request with this idempotency key is still running")
	// ErrKeyAnswered says that there is an answer under the key by now: KeptAnswer has it.
	ErrKeyAnswered = refuse(CodeConflict, "idempotency_answered", "the request with this idempotency key has been answered")
)

// InFlightError is ErrKeyInFlight, and says which run it is.
type InFlightError struct{ RunID string }

func (e *InFlightError) Error() string { return ErrKeyInFlight.Message }

// Unwrap is what it says to callers.
func (e *InFlightError) Unwrap() error { return ErrKeyInFlight }

// CheckIdempotencyKey finds what is wrong with a key.
func CheckIdempotencyKey(key string) Faults {
	f := text(key, 1, maxKey)
	if !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return r != 0 && !unicode.IsPrint(r) }) {
		f = append(f, valueError("an idempotency key is made of printable characters")...)
	}
	return f
}

// keptKey is the row of a key.
type keptKey struct {
	bun.BaseModel `bun:"table:idempotency_keys,alias:kept"`

	BusinessID  string  `bun:"business_id,pk"`
	Key         string  `bun:"key,pk"`
	RequestHash string  `bun:"request_hash"`
	RunID       string  `bun:"run_id"`
	Answer      *string `bun:"answer"` // nil while the run runs
	ExpiresAt   Time    `bun:"expires_at"`
}

// meet is what a key means for a request. Both results are nil for one that nobody has used, or that has expired.
func (k *IdempotencyKey) meet(ctx context.Context, q *bun.SelectQuery, business string, now Time) (*Answer, error) {
	kept := new(keptKey)
	err := q.Model(kept).Where("business_id = ? AND key = ? AND expires_at > ?", business, k.Key, now).Scan(ctx)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look an idempotency key up: %w", err)
	case kept.RequestHash != k.Hash:
		return nil, ErrKeyReused
	case kept.Answer == nil:
		return nil, &InFlightError{RunID: kept.RunID}
	}
	answer := new(Answer)
	if err := json.Unmarshal([]byte(*kept.Answer), answer); err != nil {
		return nil, fmt.Errorf("read the answer of run %s: %w", kept.RunID, err)
	}
	return answer, nil
}

// KeptAnswer is the answer that is kept under a key for this request, or nil if the request is the first one. It refuses with
// ErrKeyReused and InFlightError.
func (s *Store) KeptAnswer(ctx context.Context, business string, key IdempotencyKey) (*Answer, error) {
	return key.meet(ctx, s.read.NewSelect(), business, s.Now())
}

// check refuses a turn whose key is taken. From then to the commit nobody else can take it: on PostgreSQL whoever comes at the
// same moment does not get the key's lock, and is told so at once instead of waiting, which could end in a deadlock.
func (k *IdempotencyKey) check(ctx context.Context, t *tx, business string) error {
	if k == nil {
		return nil
	}
	if t.remote {
		var locked bool
		err := t.NewRaw("SELECT pg_try_advisory_xact_lock(hashtextextended(?, 0))", "key "+business+" "+k.Key).Scan(ctx, &locked)
		if err != nil {
			return fmt.Errorf("lock an idempotency key: %w", err)
		}
		if !locked {
			return ErrKeyInFlight
		}
	}
	answer, err := k.meet(ctx, t.NewSelect(), business, t.now)
	if answer != nil {
		return ErrKeyAnswered
	}
	return err
}

// claim takes a checked key for a run: one that is new, or has expired.
func (k *IdempotencyKey) claim(ctx context.Context, t *tx, business, run string) error {
	if k == nil {
		return nil
	}
	row := &keptKey{BusinessID: business, Key: k.Key, RequestHash: k.Hash, RunID: run, ExpiresAt: t.now.Add(keptAnswers)}
	_, err := t.NewInsert().Model(row).
		On("CONFLICT (business_id, key) DO UPDATE").Set("request_hash = EXCLUDED.request_hash").Set("run_id = EXCLUDED.run_id").
		Set("answer = NULL").Set("expires_at = EXCLUDED.expires_at").Returning("NULL").Exec(ctx)
	if err != nil {
		return fmt.Errorf("claim an idempotency key: %w", err)
	}
	return nil
}

// keep keeps a turn's answer under its key.
func (k *IdempotencyKey) keep(ctx context.Context, t *tx, answer Answer) error {
	if k == nil {
		return nil
	}
	doc, err := encode(answer)
	if err != nil {
		return err
	}
	_, err = t.NewRaw("UPDATE idempotency_keys SET answer = ?, expires_at = ? WHERE run_id = ?",
		string(doc), t.now.Add(keptAnswers), answer.RunID).Exec(ctx)
	if err != nil {
		return fmt.Errorf("keep the answer of run %s: %w", answer.RunID, err)
	}
	return nil
}

// releaseKey lets a run's key go, if it has one: the run failed, and whoever asks again gets a new one.
func releaseKey(ctx context.Context, t *tx, run string) error {
	if _, err := t.NewRaw("DELETE FROM idempotency_keys WHERE run_id = ?", run).Exec(ctx); err != nil {
		return fmt.Errorf("release the idempotency key of run %s: %w", run, err)
	}
	return nil
}
