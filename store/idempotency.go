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

// takenKey is what came of taking a key: the run whose it is now.
type takenKey struct {
	run  string
	hash string
	kept *string // the answer, if there is one
}

// take queues that a run takes a key, if it is new or has expired, and the reading of whose it is then. Whoever takes the
// same key at the same moment waits for this transaction, and finds it taken.
func (k *IdempotencyKey) take(t *Tx, business, run string, taken *takenKey) {
	*taken = takenKey{run: run}
	if k == nil {
		return
	}
	t.Lock(lockKeys, business+k.Key, `INSERT INTO idempotency_keys (business_id, key, request_hash, run_id, expires_at) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (business_id, key) DO UPDATE SET request_hash = excluded.request_hash, run_id = excluded.run_id, answer = NULL,
			expires_at = excluded.expires_at WHERE idempotency_keys.expires_at <= $6`,
		[]any{business, k.Key, k.Hash, run, int64(t.Now.Add(keptAnswers)), int64(t.Now)}, nil)
	t.Lock(lockKeys, business+k.Key, `SELECT run_id, request_hash, answer FROM idempotency_keys WHERE business_id = $1 AND key = $2`,
		[]any{business, k.Key}, func(scan func(...any) error) error { return scan(&taken.run, &taken.hash, &taken.kept) })
}

// refusal says why a run does not have its key; nil if it does.
func (of *takenKey) refusal(k *IdempotencyKey, run string) error {
	switch {
	case k == nil || of.run == run:
		return nil
	case of.hash != k.Hash:
		return ErrKeyReused
	case of.kept == nil:
		return &InFlightError{RunID: of.run}
	}
	return ErrKeyAnswered
}

// giveBack takes back that a run took the key: it is refused for another reason.
func (k *IdempotencyKey) giveBack(t *Tx, run string) {
	if k != nil {
		t.Exec(`DELETE FROM idempotency_keys WHERE run_id = $1`, run)
	}
}

// keep keeps a turn's answer under its key.
func (k *IdempotencyKey) keep(t *Tx, answer Answer) error {
	if k == nil {
		return nil
	}
	doc, err := encode(answer)
	if err != nil {
		return err
	}
	t.Exec(`UPDATE idempotency_keys SET answer = $1, expires_at = $2 WHERE run_id = $3`, string(doc), int64(t.Now.Add(keptAnswers)), answer.RunID)
	return nil
}
