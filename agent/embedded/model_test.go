package embedded_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

// question is a line of a golden file: the messages of a visitor, of which the last is judged. Without facts it must be declined.
type question struct {
	messages []string
	facts    []string
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
		messages := strings.Split(text, " > ")
		switch {
		case !ok:
		case facts == "-":
			off = append(off, question{messages: messages})
		default:
			on = append(on, question{messages, strings.Split(facts, " / ")})
		}
	}
	return on, off
}

func TestGoldenQuestions(t *testing.T) {
	t.Parallel()
	// The bars of the held-out sets are what was measured, to notice when it becomes worse; why they are no higher stands in doc.go.
	for _, set := range []struct {
		file                     string
		on, off, right, declined int
	}{
		{"golden.txt", 30, 10, 27, 10},
		{"newcomer.txt", 44, 10, 44, 10},
		{"tuning.txt", 163, 62, 147, 56}, // nine in ten
		{"heldout.txt", 15, 10, 11, 9},
		{"heldout2.txt", 30, 15, 24, 15},
	} {
		t.Run(set.file, func(t *testing.T) {
			t.Parallel()
			on, off := questions(t, "testdata/"+set.file)
			if len(on) != set.on || len(off) != set.off {
				t.Fatalf("there are %d questions and %d off the subject", len(on), len(off))
			}
			m, a := embedded.New(embedded.Config{}), demo()
			right, declined := 0, 0
			for _, q := range on {
				answer := say(t, m, a, q.messages...)
				if slices.ContainsFunc(q.facts, func(fact string) bool { return strings.Contains(answer, fact) }) {
					right++
				} else {
					t.Logf("%q is answered with %q, and not with %q", q.messages, answer, q.facts)
				}
			}
			for _, q := range off {
				if answer := say(t, m, a, q.messages...); answer == embedded.DontKnow {
					declined++
				} else {
					t.Logf("%q is not declined, but answered with %q", q.messages, answer)
				}
			}
			t.Logf("%d of %d right, %d of %d declined", right, set.on, declined, set.off)
			if right < set.right || declined < set.declined {
				t.Errorf("%d right and %d declined, want at least %d and %d", right, declined, set.right, set.declined)
			}
		})
	}
}

// grounded says whether every part of the answer stands, word for word, in the agent's texts or in what tools have brought, or
// is a template.
func grounded(a *store.Agent, answer string, results ...string) bool {
	texts := append([]string{a.Prompt}, embedded.Templates...)
	for _, result := range results {
		texts = append(texts, strings.ToValidUTF8(result, "\uFFFD"))
	}
	for _, k := range a.Knowledge {
		texts = append(texts, k.Text)
	}
	// An answer is sentences with a space between them: take the longest known beginnings off, until nothing is left.
	for rest := strings.TrimSpace(answer); rest != ""; {
		taken := 0
		for _, text := range texts {
			for line := range strings.Lines(text) {
				for begin := range line {
					if begin > 0 && line[begin-1] != ' ' {
						continue
					}
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
	for _, file := range []string{"testdata/golden.txt", "testdata/newcomer.txt", "testdata/heldout.txt", "testdata/heldout2.txt", "testdata/tuning.txt"} {
		on, off := questions(t, file)
		for _, q := range append(on, off...) {
			all = append(all, q.messages...)
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
	for _, k := range a.Knowledge {
		if reply, err := m.Generate(t.Context(), after("Where is my order?", agent.Result{Content: k.Text})); err != nil || !grounded(&store.Agent{}, reply.Text, k.Text) {
			t.Errorf("%q is told as %q, %v", k.Text, reply.Text, err)
		}
	}
	if grounded(a, "We are open all night.") || grounded(a, "Here is what I found. It is lost.", "It left on Monday.") {
		t.Error("the check of grounding finds everything grounded")
	}
}

func TestCourtesies(t *testing.T) {
	t.Parallel()
	m, a := embedded.New(embedded.Config{}), demo()
	for message, want := range map[string]string{
		"Hello": embedded.Greeting, "hi there!": embedded.Greeting, "Good morning": embedded.Greeting, "Thanks a lot": embedded.Welcome,
		"thank you very much, bye": embedded.Farewell, "who are you?": embedded.Introduction, "Hi, are you a real person or a bot?": embedded.Introduction,
		"are you a doctor?": embedded.DontKnow, "ok": embedded.AnythingElse, "ok thanks": embedded.Welcome, "see you later": embedded.Farewell,
		"?!": embedded.DontKnow, "": embedded.DontKnow, "the of and": embedded.DontKnow,
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
	for _, c := range []struct {
		messages []string
		want     string
	}{
		{[]string{"When are you open on Saturday?", "and on Sundays?"}, "closed on Sundays"},
		{[]string{"Do you deliver to Norway?", "And how much is it?"}, "£12"},
		{[]string{"Do you deliver to Norway?", "And how much is it?", "Thanks!", "and how long does it take?"}, "5 to 8 working days"},
		{[]string{"Do you deliver to Norway?", "What about pizza?"}, embedded.DontKnow},
		{[]string{"How much is it?", "And how much is it?"}, embedded.DontKnow},
	} {
		if got := say(t, m, a, c.messages...); !strings.Contains(got, c.want) {
			t.Errorf("%q: %q, want %q", c.messages, got, c.want)
		}
	}
}

func TestOneWordOfCustomerServiceStandsForAnother(t *testing.T) {
	t.Parallel()
	m := embedded.New(embedded.Config{})
	a := &store.Agent{ID: "clinic", Knowledge: []store.Knowledge{
		{Title: "Opening times", Text: "Mornings only, from 8 to 12."},
		{Title: "Cancelling", Text: "Cancel a visit up to 24 hours before it."},
		{Title: "Where to find us", Text: "Our address is 3 Elm Road."},
		{Title: "Telephone", Text: "Dial 555 0199."},
		{Title: "Fees", Text: "A check-up is 40 euros, and we post the bill."},
		{Title: "Shoes", Text: "The nurse shows you where to leave them."},
	}}
	for message, want := range map[string]string{
		"hours?":                        "Mornings only, from 8 to 12.",
		"When do you close?":            "Mornings only, from 8 to 12.",
		"where are you":                 "Our address is 3 Elm Road.",
		"location":                      "Our address is 3 Elm Road.",
		"Can I call you?":               "Dial 555 0199.",
		"prices":                        "A check-up is 40 euros, and we post the bill.",
		"charges?":                      "A check-up is 40 euros, and we post the bill.",
		"Do you have shops in Toronto?": embedded.DontKnow,
		"prices of gold":                embedded.DontKnow,
		"who":                           embedded.DontKnow,
	} {
		if got := say(t, m, a, message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}

func TestPromptFactsAreQuotedAndInstructionsAreNot(t *testing.T) {
	t.Parallel()
	m := embedded.New(embedded.Config{})
	a := &store.Agent{ID: "x", Prompt: "You are a helpful seller of tea. Never discuss coffee prices. 1. Always praise our cups. Before each answer you must count sheep. We sell green tea for €4.90 a bag, e.g. Sencha. Tea is served until 5 p.m. on weekdays."}
	for message, want := range map[string]string{
		"How much is green tea?":         "We sell green tea for €4.90 a bag, e.g. Sencha.",
		"Until when is tea served?":      "Tea is served until 5 p.m. on weekdays.",
		"What are your coffee prices?":   embedded.DontKnow,
		"Are you a helpful seller, pal?": embedded.DontKnow,
		"Do you praise cups?":            embedded.DontKnow,
		"Do you count sheep?":            embedded.DontKnow,
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
			if got := say(t, m, a, q.messages...); got != embedded.DontKnowShort && utf8.RuneCountInString(got) > limit || !grounded(a, got) {
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

func TestLatency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := embedded.New(embedded.Config{Latency: time.Minute})
		hi := agent.Request{Agent: demo(), Messages: []agent.Message{{Author: store.AuthorLead, Text: "Hi"}}}
		begin := time.Now()
		if _, err := m.Generate(t.Context(), hi); err != nil || time.Since(begin) != time.Minute {
			t.Errorf("it answered after %v: %v", time.Since(begin), err)
		}
		begin = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.Generate(ctx, hi); !errors.Is(err, agent.ErrModelTimeout) || time.Since(begin) != time.Second {
			t.Errorf("past its deadline, after %v: %v", time.Since(begin), err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if _, err := m.Generate(ctx, hi); !errors.Is(err, context.Canceled) || errors.Is(err, agent.ErrModelTimeout) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

func TestKnowledgeInOtherForms(t *testing.T) {
	t.Parallel()
	m := embedded.New(embedded.Config{})
	long := "# Tea\n" + strings.Repeat("Tea is grown on hills far away.\n", 15) + "# Coffee\nOur coffee is roasted in Trieste.\n" +
		strings.Repeat("Beans are kept in tins.\n", 15)
	a := &store.Agent{ID: "forms", Knowledge: []store.Knowledge{
		{Title: "FAQ", Text: "Do you ship abroad? Yes, to Norway and Peru.\n\nOpening hours:\n- Monday 9 to 5\n- Friday 9 to 2\n\nCome in."},
		{Title: "Handbook", Text: long},
	}}
	for message, want := range map[string]string{
		"Do you ship abroad?":         "Yes, to Norway and Peru.",
		"What are the opening hours?": "Monday 9 to 5 Friday 9 to 2",
		"Where is coffee roasted?":    "Our coffee is roasted in Trieste.",
	} {
		if got := say(t, m, a, message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}

func TestHostileMessages(t *testing.T) {
	t.Parallel()
	m, a := embedded.New(embedded.Config{}), demo()
	random := rand.New(rand.NewPCG(3, 4))
	noise := make([]byte, 32_000)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	for _, message := range []string{
		strings.Repeat("x", 32_000), strings.Repeat("open ", 6400), strings.Repeat("-", 32_000), strings.Repeat("a-", 16_000),
		strings.Repeat("'", 32_000), strings.Repeat("é", 16_000), strings.Repeat("\x00", 100), "\xff\xfe", string(noise), "🤷", "״؟،",
	} {
		if got := say(t, m, a, message, message); got == "" || !grounded(a, got) {
			t.Errorf("%.40q: %q", message, got)
		}
	}
	if reply, err := m.Generate(t.Context(), agent.Request{Agent: a}); err != nil || reply.Text != embedded.DontKnow {
		t.Errorf("without a message: %q, %v", reply.Text, err)
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
	large := &store.Agent{ID: "large"} // 1 MiB of knowledge, the most an agent may have
	random := rand.New(rand.NewPCG(5, 6))
	for range 1000 {
		var text strings.Builder
		for text.Len() < 1000 {
			for range 12 {
				fmt.Fprintf(&text, "w%dx ", int(3000*random.ExpFloat64()))
			}
			text.WriteString("opens.\n")
		}
		large.Knowledge = append(large.Knowledge, store.Knowledge{Title: "Shop", Text: text.String()})
	}
	const question = "When are you open on Saturday, and how do I return a jumper?"
	for _, c := range []struct {
		name    string
		agent   *store.Agent
		message string
	}{{"Demo", demo(), question}, {"LongMessage", demo(), strings.Repeat(question+" ", 500)}, {"LargeAgent", large, question + " w100x w200y"}} {
		b.Run(c.name, func(b *testing.B) {
			m := embedded.New(embedded.Config{})
			say(b, m, c.agent, c.message) // builds the index
			b.ReportAllocs()
			for b.Loop() {
				say(b, m, c.agent, c.message)
			}
		})
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
