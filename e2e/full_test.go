package e2e_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"parley/e2e/servers"
)

// TestFullDisk: on a full disk chats are refused for the moment, and what is stored can be read; a reply that was finished meanwhile
// is there once there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=8m"); err != nil {
		servers.Missing(t, "a small disk cannot be mounted: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	const thinks = 2 * time.Second
	s := start(t, "PARLEY_DATABASE_URL=file:"+filepath.Join(disk, "parley.db"), "PARLEY_EMBEDDED_MODEL_LATENCY="+thinks.String())
	began := s.subscribe(token, eventsLive, nil)
	type answer struct {
		status int
		body   []byte
		err    error
	}
	first := make(chan answer, 1)
	body := `{"message":"When are you open?","channel":"sms"}`
	go func() {
		status, _, body, err := s.try(t.Context(), "POST", "/agents/demo/chat", withKey(apiKey), body)
		first <- answer{status, body, err}
	}()
	began.wait() // the question is stored
	ballast := fill(t, filepath.Join(disk, "ballast"))
	for until := time.Now().Add(2 * thinks); time.Now().Before(until); { // by then the first reply has nowhere to go
		status, header, answer := s.call("POST", "/agents/demo/chat", withKey(apiKey), body)
		if status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || at(answer, "code") != "unavailable" {
			t.Fatalf("a chat on a full disk: %d %v %v\n%s", status, header, answer, s.log())
		}
		if code, _ := s.refused(withToken(token), `mutation { createAgent(input: {name: "A"}) { id } }`, nil); code != "UNAVAILABLE" {
			t.Fatalf("a mutation on a full disk: %v", code)
		}
		s.query(token, "{ runs { nodes { id } } }", nil)
	}
	eventually(t, "told", func() bool {
		told := s.metrics()
		return told["parley_database_full"] == 1 && told["parley_database_up"] == 1
	})
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if a := <-first; a.err != nil || a.status != http.StatusOK {
		t.Errorf("the first chat: %d %s %v\n%s", a.status, a.body, a.err, s.log())
	}
	s.chat("Hello", "")
	eventually(t, "told", func() bool { return strings.Contains(s.log(), "the database is back") })
	if n := strings.Count(s.log(), "the database has no room left"); n != 1 {
		t.Errorf("the log tells of the full disk %d times:\n%s", n, s.log())
	}
}

// fill takes all the room that a disk has.
func fill(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, io.ErrShortWrite) {
		t.Fatal(err)
	}
	return name
}
