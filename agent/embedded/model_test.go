package embedded_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"parley/agent"
	"parley/agent/embedded"
	"parley/store"
)

func demo() *store.Agent {
	name, prompt, knowledge := agent.Demo()
	return &store.Agent{ID: "demo", BusinessID: "biz", Name: name, Prompt: prompt, Knowledge: knowledge, Version: 1}
}

func say(t testing.TB, m *embedded.Model, a *store.Agent, messages ...string) string {
	t.Helper()
	req := agent.Request{Agent: a, Channel: store.WhatsApp}
	for i, text := range messages {
		if i > 0 {
			req.Messages = append(req.Messages, agent.Message{Author: store.AuthorAgent, Text: "…"})
		}
		req.Messages = append(req.Messages, agent.Message{Author: store.AuthorLead, Text: text})
	}
	reply, err := m.Generate(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	if reply.Model != "embedded/extractive-1" || reply.Usage != (store.TokenUsage{Source: store.UsageNone}) {
		t.Errorf("it says of itself: %+v", reply)
	}
	return reply.Text
}

// question is a line of a golden file; without facts it must be declined.
type question struct {
	text  string
	facts []string
}

func questions(t testing.TB, file string) (on, off []question) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for scan := bufio.NewScanner(f); scan.Scan(); {
		text, facts, ok := strings.Cut(scan.Text(), " | ")
		switch {
		case !ok:
		case facts == "-":
			off = append(off, question{text: text})
		default:
			on = append(on, question{text, strings.Split(facts, " / ")})
		}
	}
	return on, off
}

func TestGoldenQuestions(t *testing.T) {
	t.Parallel()
	for _, set := range []struct {
		file                     string
		on, off, right, declined int
	}{{"testdata/golden.txt", 30, 10, 27, 10}, {"testdata/heldout.txt", 15, 10, 11, 8}} {
		on, off := questions(t, set.file)
		if len(on) != set.on || len(off) != set.off {
			t.Fatalf("%s has %d questions and %d off the subject", set.file, len(on), len(off))
		}
		m, a := embedded.New(embedded.Config{}), demo()
		right, declined := 0, 0
		for _, q := range on {
			answer := say(t, m, a, q.text)
			hit := false
			for _, f := range q.facts {
				hit = hit || strings.Contains(answer, f)
			}
			if hit {
				right++
			} else {
				t.Logf("%s: %q is answered with %q, and not with %q", set.file, q.text, answer, q.facts)
			}
		}
		for _, q := range off {
			if answer := say(t, m, a, q.text); answer == embedded.DontKnow {
				declined++
			} else {
				t.Logf("%s: %q is not declined, but answered with %q", set.file, q.text, answer)
			}
		}
		t.Logf("%s: %d of %d right, %d of %d declined", set.file, right, set.on, declined, set.off)
		if right < set.right || declined < set.declined {
			t.Errorf("%s: %d right and %d declined, want at least %d and %d", set.file, right, declined, set.right, set.declined)
		}
	}
}

// grounded says whether every part of the answer stands, word for word, in the agent's texts or is a template.
func grounded(a *store.Agent, answer string) bool {
	texts := append([]string{a.Prompt}, embedded.Templates...)
	for _, k := range a.Knowledge {
		texts = append(texts, k.Text)
	}
	// An answer is sentences with a space between them: take the longest known beginnings off, until nothing is left.
	for rest := strings.TrimSpace(answer); rest != ""; {
		taken := 0
		for _, text := range texts {
			for line := range strings.Lines(text) {
				for begin := range line {
					if n := common(line[begin:], rest); n > taken && (n == len(rest) || rest[n] == ' ') {
						taken = n
					}
				}
			}
		}
		if taken == 0 {
			return false
		}
		rest = strings.TrimSpace(rest[taken:])
	}
	return true
}

// common is the length of the longest common beginning that ends a sentence or a line.
func common(a, b string) int {
	a = strings.TrimRight(a, "\n")
	best := 0
	for i := 0; i < len(a) && i < len(b) && a[i] == b[i]; i++ {
		if strings.IndexByte(".!?", a[i]) >= 0 || i+1 == len(a) {
			best = i + 1
		}
	}
	return best
}

func TestEverySentenceIsGrounded(t *testing.T) {
	t.Parallel()
	m, a := embedded.New(embedded.Config{}), demo()
	var all []string
	for _, file := range []string{"testdata/golden.txt", "testdata/heldout.txt"} {
		on, off := questions(t, file)
		for _, q := range append(on, off...) {
			all = append(all, q.text)
		}
	}
	var vocabulary []string
	for _, k := range a.Knowledge {
		vocabulary = append(vocabulary, strings.Fields(k.Title+" "+k.Text)...)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var words []string
		for range 1 + random.IntN(6) {
			words = append(words, vocabulary[random.IntN(len(vocabulary))])
		}
		all = append(all, strings.Join(words, " "))
	}
	for _, q := range all {
		if answer := say(t, m, a, q); !grounded(a, answer) {
			t.Errorf("%q is answered with what stands nowhere: %q", q, answer)
		}
		if say(t, m, a, q) != say(t, embedded.New(embedded.Config{}), a, q) {
			t.Errorf("%q is answered differently the second time", q)
		}
	}
	if grounded(a, "We are open all night.") {
		t.Error("the check of grounding finds everything grounded")
	}
}

func TestCourtesies(t *testing.T) {
	t.Parallel()
	m, a := embedded.New(embedded.Config{}), demo()
	for message, want := range map[string]string{
		"Hello": embedded.Greeting, "hi there!": embedded.Greeting, "Good morning": embedded.Greeting, "Thanks a lot": embedded.Welcome,
		"thank you very much, bye": embedded.Farewell, "?!": embedded.DontKnow, "": embedded.DontKnow, "the of and": embedded.DontKnow,
	} {
		if got := say(t, m, a, message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
	if got := say(t, m, a, "Hello, when are you open on Saturday?"); !strings.Contains(got, "16:00") {
		t.Errorf("a question after a greeting: %q", got)
	}
	if got := say(t, m, &store.Agent{ID: "empty"}, "When are you open?"); got != embedded.DontKnow {
		t.Errorf("an agent that knows nothing: %q", got)
	}
}

func TestFollowUp(t *testing.T) {
	t.Parallel()
	m, a := embedded.New(embedded.Config{}), demo()
	if got := say(t, m, a, "When are you open on Saturday?", "and on Sundays?"); !strings.Contains(got, "closed on Sundays") {
		t.Errorf("the follow-up: %q", got)
	}
}

func TestPromptFactsAreQuotedAndInstructionsAreNot(t *testing.T) {
	t.Parallel()
	m := embedded.New(embedded.Config{})
	a := &store.Agent{ID: "x", Prompt: "You are a helpful seller of tea. Never discuss coffee prices. We sell green tea for €4.90 a bag, e.g. Sencha. Tea is served until 5 p.m. on weekdays."}
	for message, want := range map[string]string{
		"How much is green tea?":         "We sell green tea for €4.90 a bag, e.g. Sencha.",
		"Until when is tea served?":      "Tea is served until 5 p.m. on weekdays.",
		"What are your coffee prices?":   embedded.DontKnow,
		"Are you a helpful seller, pal?": embedded.DontKnow,
	} {
		if got := say(t, m, a, message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}

func TestMaxLengthDropsWholeSentences(t *testing.T) {
	t.Parallel()
	m, a := embedded.New(embedded.Config{}), demo()
	for _, limit := range []int{10, 40, 60, 80, 120, 200} {
		a.ChannelProfiles = []store.ChannelProfile{{Channel: store.WhatsApp, MaxLength: &limit}}
		on, _ := questions(t, "testdata/golden.txt")
		for _, q := range on {
			if got := say(t, m, a, q.text); got != embedded.DontKnow && utf8.RuneCountInString(got) > limit || !grounded(a, got) {
				t.Errorf("within %d characters: %q", limit, got)
			}
		}
	}
}

func TestAChangedAgentAnswersAnew(t *testing.T) {
	t.Parallel()
	m, a := embedded.New(embedded.Config{}), demo()
	say(t, m, a, "When are you open on Saturday?")
	changed := *a
	changed.Version++
	changed.Knowledge = []store.Knowledge{{Title: "Hours", Text: "On Saturday we open at noon."}}
	if got := say(t, m, &changed, "When are you open on Saturday?"); got != "On Saturday we open at noon." {
		t.Errorf("after the change: %q", got)
	}
}

func TestLatencyAndDeadline(t *testing.T) {
	t.Parallel()
	m := embedded.New(embedded.Config{Latency: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := m.Generate(ctx, agent.Request{Agent: demo(), Messages: []agent.Message{{Author: store.AuthorLead, Text: "Hi"}}})
	if !errors.Is(err, agent.ErrModelTimeout) {
		t.Errorf("past its deadline: %v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	m := embedded.New(embedded.Config{})
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			a := demo()
			a.ID = fmt.Sprint(i % 280) // more than are cached
			if got := say(t, m, a, "Do you sell gift vouchers?"); !strings.Contains(got, "gift card") {
				t.Errorf("%q", got)
			}
		})
	}
	wg.Wait()
}

func BenchmarkTurn(b *testing.B) {
	m, a := embedded.New(embedded.Config{}), demo()
	for b.Loop() {
		say(b, m, a, "When are you open on Saturday, and how do I return a jumper?")
	}
}

func FuzzGenerate(f *testing.F) {
	for _, s := range []string{"When are you open?", "\x00", "é'’'", strings.Repeat("word ", 6000), strings.Repeat("x", 32_000), "???", "open-open_open"} {
		f.Add(s)
	}
	m, a := embedded.New(embedded.Config{}), demo()
	f.Fuzz(func(t *testing.T, message string) {
		if answer := say(t, m, a, message); answer == "" || !grounded(a, answer) {
			t.Errorf("%q: %q", message, answer)
		}
	})
}
