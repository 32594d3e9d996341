package e2e_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"parley/e2e/servers"
)

// before is the last commit whose deliveries had three forms and leases (decision 21).
const before = "a0c50f4"

var earlier struct {
	once sync.Once
	path string
	err  error
}

// earlierBinary is the server of that commit, built from the history.
func earlierBinary(t *testing.T) string {
	t.Helper()
	if exec.Command("git", "cat-file", "-e", before+"^{commit}").Run() != nil {
		servers.Missing(t, "the history has no commit %s to upgrade from", before)
	}
	earlier.once.Do(func() {
		dir := filepath.Join(filepath.Dir(binary), before) // removed by TestMain
		if earlier.err = os.Mkdir(dir, 0o700); earlier.err != nil {
			return
		}
		earlier.path = filepath.Join(dir, "parley-before")
		for _, command := range []string{
			"git -C .. archive " + before + " -o " + dir + ".tar", "tar -xf " + dir + ".tar -C " + dir, "go build -C " + dir + " -o " + earlier.path + " parley",
		} {
			words := strings.Fields(command)
			if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
				earlier.err = fmt.Errorf("%s: %w\n%s", command, err, out)
				return
			}
		}
	})
	if earlier.err != nil {
		t.Fatal(earlier.err)
	}
	return earlier.path
}

// taker is a receiver with a mood. It counts what it took, by event.
type taker struct {
	*receiver
	mu   sync.Mutex // guards what follows
	mood mood
	took map[string]int
	has  int // requests that it has, and does not answer
}

type mood int

const (
	well  mood = iota
	slow       // it takes what comes after a while
	ill        // it answers 500
	stuck      // it does not answer
)

func newTaker(t *testing.T, mood mood) *taker {
	t.Helper()
	k := &taker{mood: mood, took: map[string]int{}}
	k.receiver = receive(t, func(_ int, w http.ResponseWriter, req *http.Request) {
		if k.is() == slow {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-req.Context().Done():
				return
			}
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		switch k.mood {
		case ill:
			w.WriteHeader(http.StatusInternalServerError)
		case stuck:
			k.has++
			k.mu.Unlock()
			<-req.Context().Done()
			k.mu.Lock()
			k.has--
		default:
			k.took[req.Header.Get("Webhook-Id")]++
		}
	})
	go func() {
		for range k.came {
			continue
		}
	}()
	t.Cleanup(func() { k.Close(); close(k.came) })
	return k
}

func (k *taker) is() mood {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mood
}

func (k *taker) becomes(m mood) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mood = m
}

// all are the events that it took, and how often.
func (k *taker) all() map[string]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make(map[string]int, len(k.took))
	for id, n := range k.took {
		all[id] = n
	}
	return all
}

// TestUpgrade has the server of before fill a database with deliveries in every state, and end; then this one starts on it. Every event
// reaches every endpoint, what is on record as delivered is not sent again, and the deliveries and their attempts are still there,
// under their ids.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"embedded", "production"} {
		for _, end := range []string{"stopped", "killed"} {
			t.Run(mode+", "+end, func(t *testing.T) {
				t.Parallel()
				upgrade(t, mode == "production", end == "killed")
			})
		}
	}
}

func upgrade(t *testing.T, production, killed bool) {
	old := earlierBinary(t)
	settings := []string{"PARLEY_DELIVERY_RETRIES=6", "PARLEY_DELIVERY_BACKOFF=1s", "PARLEY_DELIVERY_TIMEOUT=4s"}
	var s *server
	var f *fleet
	if production {
		f = fleetOn(t, servers.Database(t), settings...)
		f.start(1, old)
		s = f.replicas[0]
	} else {
		s = launched(t, old, settings...)
	}
	const chats = 12
	answers, disabled, replayed := newTaker(t, well), newTaker(t, well), newTaker(t, slow)
	fails, hangs := newTaker(t, ill), newTaker(t, stuck)
	endpoints := map[string]*taker{}
	ids := map[*taker]string{}
	register := func(k *taker) {
		id, _ := s.register(k.URL, "message.created", "run.finished")
		endpoints[id], ids[k] = k, id
	}
	for _, k := range []*taker{answers, disabled, fails, hangs} {
		register(k)
	}
	s.query(token, enable, object{"id": ids[disabled], "to": "DISABLED"})
	for range chats {
		s.chat("Hello", "")
	}
	register(replayed)
	s.query(token, replay, object{"id": ids[replayed], "since": time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), "failed": false})
	s.query(token, sendTest, object{"id": ids[answers], "type": "RUN_FINISHED"})
	s.query(token, sendTest, object{"id": ids[hangs], "type": "RUN_FINISHED"})
	eventually(t, "in every state", func() bool {
		return len(answers.all()) > 0 && len(replayed.all()) > 0 && hangs.waiting() >= 8 && len(s.list(ids[fails], "RETRYING")) > 0 &&
			len(s.list(ids[disabled], "SKIPPED")) == 3*chats
	})
	known := s.deliveries()
	events := s.events()
	if killed {
		s.kill()
	} else if code := s.stop(); code != 0 {
		t.Fatalf("the server of before ended with %d:\n%s", code, s.log())
	}
	recorded := delivered(t, s, f)
	took := map[string]map[string]int{}
	for id, k := range endpoints {
		took[id] = k.all()
	}
	t.Logf("%d events; %d deliveries are listed, and %d recorded as delivered", len(events), len(known), len(recorded))

	for _, k := range endpoints {
		k.becomes(well)
	}
	if production {
		f.start(2, binary)
		s = f.replicas[0]
	} else {
		s.binary = binary
		s.up()
	}
	lacks := func() (missing []string) {
		for _, k := range endpoints {
			if k == disabled {
				continue
			}
			all := k.all()
			for _, event := range events {
				if all[event] == 0 {
					missing = append(missing, event+" at "+k.URL)
				}
			}
		}
		return missing
	}
	eventually(t, "everywhere", func() bool { return len(lacks()) == 0 })
	s.query(token, enable, object{"id": ids[disabled], "to": "ENABLED"})
	s.query(token, replay, object{"id": ids[disabled], "since": time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), "failed": true})
	eventually(t, "what was skipped", func() bool { return len(disabled.all()) == len(events) })
	for _, status := range []string{"PENDING", "RETRYING", "SKIPPED"} {
		eventually(t, "nothing "+status, func() bool {
			for id := range endpoints {
				if len(s.list(id, status)) > 0 {
					return false
				}
			}
			return true
		})
	}
	for id, k := range endpoints {
		for event, n := range k.all() {
			switch {
			case recorded[event+id] && n > took[id][event]:
				t.Errorf("%s was delivered to %s, and was sent again", event, k.URL)
			case !killed && n > 1:
				t.Errorf("%s was delivered to %s %d times", event, k.URL, n)
			}
		}
	}
	for _, d := range known {
		now := s.delivery(at(d, "id"))
		if now == nil {
			t.Errorf("there is no %v any more", d)
			continue
		}
		was, is := at(d, "attempts").([]any), at(now, "attempts").([]any)
		switch {
		case at(now, "id") != at(d, "id") || at(now, "event", "id") != at(d, "event", "id") || at(now, "endpoint", "id") != at(d, "endpoint", "id"):
			t.Errorf("%v is now %v", d, now)
		case len(is) < len(was) || at(d, "status") == "DELIVERED" && (at(now, "status") != "DELIVERED" || len(is) != len(was)):
			t.Errorf("%v is now %v", d, now)
		}
		for i := range min(len(was), len(is)) {
			if encode(was[i]) != encode(is[i]) {
				t.Errorf("attempt %d of %v was %v and is %v", i+1, at(d, "id"), was[i], is[i])
			}
		}
	}
	if n := len(s.deliveries()); n != 5*len(events)+2 {
		t.Errorf("%d deliveries are listed, of %d events and 2 tests to 5 endpoints", n, len(events))
	}
}

func (k *taker) waiting() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.has
}

const deliveryFields = `id status event { id } endpoint { id } attempts { number trigger startedAt durationMs statusCode error remoteAddress responseBody }`

// deliveries reads all of the business, and events the ids of all its events.
func (s *server) deliveries() []any {
	return s.pages(`query($after: String) { deliveries(first: 50, after: $after) { nodes { `+deliveryFields+` } pageInfo { hasNextPage endCursor } } }`, "deliveries")
}

func (s *server) events() (ids []string) {
	for _, e := range s.pages(`query($after: String) { events(first: 100, after: $after) { nodes { id } pageInfo { hasNextPage endCursor } } }`, "events") {
		ids = append(ids, at(e, "id").(string))
	}
	return ids
}

func (s *server) pages(query, field string) (all []any) {
	s.t.Helper()
	var after any
	for {
		page := at(s.query(token, query, object{"after": after}), field)
		all = append(all, at(page, "nodes").([]any)...)
		if at(page, "pageInfo", "hasNextPage") != true {
			return all
		}
		after = at(page, "pageInfo", "endCursor")
	}
}

func (s *server) delivery(id any) any {
	s.t.Helper()
	return at(s.query(token, `query($id: ID!) { delivery(id: $id) { `+deliveryFields+` } }`, object{"id": id}), "delivery")
}

// delivered are the deliveries that the server of before has recorded as such, by event and endpoint.
func delivered(t *testing.T, s *server, f *fleet) map[string]bool {
	t.Helper()
	var db *sql.DB
	if f != nil {
		db = f.open()
	} else {
		var err error
		if db, err = sql.Open("sqlite", filepath.Join(s.dir, "parley.db")); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
	}
	rows, err := db.QueryContext(t.Context(), "SELECT event_id, endpoint_id FROM deliveries WHERE status = 'delivered'")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	of := map[string]bool{}
	for rows.Next() {
		var event, endpoint string
		if err := rows.Scan(&event, &endpoint); err != nil {
			t.Fatal(err)
		}
		of[event+endpoint] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return of
}

// TestUpgradeBesideAServerOfBefore: while a server of before is at work on the database, this one says so, ends, and changes nothing.
func TestUpgradeBesideAServerOfBefore(t *testing.T) {
	t.Parallel()
	f := fleetOn(t, servers.Database(t))
	f.start(1, earlierBinary(t))
	cmd := exec.Command(binary)
	cmd.Dir, cmd.Env = t.TempDir(), append(clean(), f.env...)
	var said bytes.Buffer
	cmd.Stderr = &said
	_ = cmd.Run()
	if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(said.String(), "a server of an earlier version is at work on this database") {
		t.Errorf("it ended with %d: %s", cmd.ProcessState.ExitCode(), &said)
	}
	in := newInbox(t)
	f.replicas[0].register(in.URL, everything...)
	f.replicas[0].chat("Hello", "")
	eventually(t, "delivered by the server of before", func() bool {
		events, _ := in.counts()
		return events == 3
	})
}
