package embedded

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"parley/agent"
	"parley/store"
)

// Name is what the model calls itself.
const Name = "embedded/extractive-1"

const (
	enough       = 0.5 // coverage below which a message is declined
	alsoGood     = 0.6 // of the best sentence's weight: what a further one must have to be quoted beside it
	maxQuoted    = 3   // sentences of an answer
	maxTerms     = 64  // different stems of a message that are looked at
	shortMessage = 3   // stems: a message no longer than this may lean on the one before it
	agentsCached = 256
)

// Config is what a Model is made with.
type Config struct {
	Latency time.Duration // how long it waits before it answers: for tests and demos
}

// Model is embedded/extractive-1. It is safe for concurrent use.
type Model struct {
	latency time.Duration

	mu      sync.Mutex // guards what follows
	indexes map[string]*list.Element
	recent  *list.List // of cached, the one used last in front
}

type cached struct {
	agent   string
	version int64
	index   func() *index // built by the first who needs it; the others wait
}

// New makes a model.
func New(cfg Config) *Model {
	return &Model{latency: cfg.Latency, indexes: map[string]*list.Element{}, recent: list.New()}
}

// Generate implements agent.Model.
func (m *Model) Generate(ctx context.Context, req agent.Request) (agent.Reply, error) {
	if m.latency > 0 {
		timer := time.NewTimer(m.latency)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return agent.Reply{}, fmt.Errorf("%w: %w", agent.ErrModelTimeout, err)
		}
		return agent.Reply{}, err
	}
	text := m.answer(req)
	return agent.Reply{Text: text, Model: Name, Usage: store.TokenUsage{Source: store.UsageNone}}, nil
}

// answer finds what to say to the last message.
func (m *Model) answer(req agent.Request) string {
	message := req.Messages[len(req.Messages)-1].Text
	said := words(message)
	if polite, ok := courtesy(said); ok {
		return polite
	}
	limit := 0
	for _, p := range req.Agent.ChannelProfiles {
		if p.Channel == req.Channel && p.MaxLength != nil {
			limit = *p.MaxLength
		}
	}
	x := m.indexOf(req.Agent)
	query := terms(said)
	if slices.Contains(said, "much") && slices.Contains(said, "how") {
		query = append(query, askingPrice...)
	}
	if text := x.answer(query, limit); text != "" {
		return text
	}
	// "And on Sunday?": a short message of known words goes on with the subject of the one before it.
	unknown := func(stem string) bool { _, known := x.known[stem]; return !known }
	if len(query) > 0 && len(query) <= shortMessage && !slices.ContainsFunc(query, unknown) {
		for _, earlier := range slices.Backward(req.Messages[:len(req.Messages)-1]) {
			if earlier.Author == store.AuthorLead {
				if text := x.answer(distinct(append(query, terms(words(earlier.Text))...)), limit); text != "" {
					return text
				}
				break
			}
		}
	}
	return DontKnow
}

// askingPrice is what "how much" asks for, where the texts may say it in other words.
var askingPrice = stems([]string{"cost", "price"})

// terms are the different stems of a message, as many as are looked at.
func terms(words []string) []string { return distinct(stems(words)) }

func distinct(stems []string) []string {
	seen := make(map[string]bool, len(stems))
	var out []string
	for _, s := range stems {
		if !seen[s] && len(out) < maxTerms {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// answer quotes what answers the query within limit characters (0: any number), or nothing.
func (x *index) answer(query []string, limit int) string {
	if len(query) == 0 {
		return ""
	}
	query = x.mended(query)
	var best *doc
	top := 0.0
	for i := range x.docs {
		d := &x.docs[i]
		if score, coverage := x.score(d, query); coverage >= enough && score > top {
			best, top = d, score
		}
	}
	if best == nil {
		return ""
	}
	return x.quote(best, query, limit)
}

// quote picks the sentences of the doc that know most of the query, and gives them in their order.
func (x *index) quote(d *doc, query []string, limit int) string {
	weights := make([]float64, len(d.sentences))
	order := make([]int, len(d.sentences))
	for i, s := range d.sentences {
		order[i] = i
		for _, stem := range query {
			if s.stems[stem] {
				weights[i] += x.known[stem]
			}
		}
	}
	// Of equals, the earlier: a snippet begins with what matters. Where only its title matched, that is its beginning.
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case weights[a] > weights[b]:
			return -1
		case weights[a] < weights[b]:
			return 1
		}
		return 0
	})
	var picked []int
	length := 0
	for rank, i := range order {
		// Beside the best: those nearly as good, and the snippet's first, which says what the others go into.
		if rank > 0 && i != 0 && weights[i] < alsoGood*weights[order[0]] {
			continue
		}
		n := utf8.RuneCountInString(d.sentences[i].text) + min(1, length)
		if limit > 0 && length+n > limit {
			continue
		}
		length += n
		if picked = append(picked, i); len(picked) == maxQuoted {
			break
		}
	}
	slices.Sort(picked)
	var out []string
	for _, i := range picked {
		out = append(out, d.sentences[i].text)
	}
	return strings.Join(out, " ")
}

// indexOf is the agent's index, built once for each of its versions.
func (m *Model) indexOf(a *store.Agent) *index {
	key := a.BusinessID + "/" + a.ID
	m.mu.Lock()
	e := m.indexes[key]
	if e != nil && e.Value.(cached).version == a.Version {
		m.recent.MoveToFront(e)
	} else {
		if e != nil {
			m.recent.Remove(e)
		}
		e = m.recent.PushFront(cached{key, a.Version, sync.OnceValue(func() *index { return newIndex(a) })})
		m.indexes[key] = e
		if m.recent.Len() > agentsCached {
			delete(m.indexes, m.recent.Remove(m.recent.Back()).(cached).agent)
		}
	}
	build := e.Value.(cached).index
	m.mu.Unlock()
	return build()
}
