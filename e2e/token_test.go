package e2e_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"parley/e2e/servers"
)

// parley runs one of the binary's commands beside the server, with its settings.
func (s *server) parley(args ...string) (out string, err error) {
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Env = s.dir, append(clean(), s.env...)
	raw, err := cmd.CombinedOutput()
	return string(raw), err
}

// TestLostToken: whoever can run the binary with the server's settings makes a token at any time,
// beside the running server, on either database. It opens at once, says where it came from, and can
// end the one that was lost.
func TestLostToken(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]func(t *testing.T) []string{
		"SQLite": func(*testing.T) []string { return nil },
		"PostgreSQL": func(t *testing.T) []string {
			return []string{"PARLEY_DATABASE_URL=" + servers.Database(t), "PARLEY_SECRET_KEY=" + base64.StdEncoding.EncodeToString(make([]byte, 32))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, append(settings(t), "PARLEY_BOOTSTRAP_TOKEN=")...)
			lost := regexp.MustCompile(`at_\w+`).FindString(s.stdout())
			out, err := s.parley("token", "create")
			link := regexp.MustCompile(`(?m)^sign in at +(http://127\.0\.0\.1:\d+)/#token=(at_\w+)$`).FindStringSubmatch(out)
			if err != nil || link == nil || strings.Count(out, link[2]) != 2 {
				t.Fatalf("token create: %v\n%s", err, out)
			}
			found := s.query(link[2], `{ viewer { scope business { id } } accessTokens { id name prefix } }`, nil)
			if at(found, "viewer", "scope") != "ADMIN" || at(found, "accessTokens", 0, "name") != "parley token create" || at(found, "accessTokens", 1, "prefix") != lost[:8] {
				t.Errorf("the new token sees %v", found)
			}
			s.query(link[2], `mutation($id: ID!) { revokeAccessToken(id: $id) { id } }`, object{"id": at(found, "accessTokens", 1, "id")})
			if code, _ := s.refused(withToken(lost), `{ viewer { scope } }`, nil); code != "UNAUTHENTICATED" {
				t.Errorf("the lost token: %v", code)
			}

			// Of several businesses one is named, which the refusal lists.
			first := at(found, "viewer", "business", "id").(string)
			if out, err := s.parley("business", "create", "Other & Sons"); err != nil {
				t.Fatal(out)
			}
			out, err = s.parley("token", "create")
			other := regexp.MustCompile(`(biz_[\w-]+) \(Other & Sons\)`).FindStringSubmatch(out)
			if err == nil || other == nil || !strings.Contains(out, first+" (demo)") || strings.Count(out, "\n") != 1 {
				t.Fatalf("of two businesses: %v\n%s", err, out)
			}
			out, err = s.parley("token", "create", "--business", other[1], "--scope", "READ")
			viewer := s.query(regexp.MustCompile(`at_\w+`).FindString(out), `{ viewer { scope business { name } } }`, nil)
			if err != nil || at(viewer, "viewer", "scope") != "READ" || at(viewer, "viewer", "business", "name") != "Other & Sons" {
				t.Errorf("of the other: %v %v\n%s", viewer, err, out)
			}
			for wrong, args := range map[string][]string{
				"there is no business biz_nobody": {"--business", "biz_nobody"}, "READ": {"--scope", "ROOT"},
			} {
				if out, err := s.parley(append([]string{"token", "create"}, args...)...); err == nil || !strings.Contains(out, wrong) || strings.Count(out, "\n") != 1 {
					t.Errorf("%v: %v\n%s", args, err, out)
				}
			}
		})
	}
}

// TestLostTokenOfAFullBusiness: that a business may have no more credentials locks nobody out who
// has lost those that it has.
func TestLostTokenOfAFullBusiness(t *testing.T) {
	t.Parallel()
	s := start(t)
	const more = `mutation { createApiKey(name: "another") { secret } }`
	for n := 0; ; n++ {
		if code, reason := s.refused(withToken(token), more, nil); reason == "limit_reached" {
			break
		} else if code != nil || n > 100 {
			t.Fatalf("key %d: %v %v", n, code, reason)
		}
	}
	out, err := s.parley("token", "create")
	secret := regexp.MustCompile(`at_\w+`).FindString(out)
	if viewer := s.query(secret, `{ viewer { scope } }`, nil); err != nil || at(viewer, "viewer", "scope") != "ADMIN" {
		t.Errorf("token create: %v %v\n%s", viewer, err, out)
	}
	if _, reason := s.refused(withToken(secret), more, nil); reason != "limit_reached" {
		t.Errorf("with the new token, another key: %v", reason)
	}
}

// TestTokenWithoutADatabase: in another folder than the server's nothing is made.
func TestTokenWithoutADatabase(t *testing.T) {
	t.Parallel()
	s := &server{t: t, dir: t.TempDir()}
	out, err := s.parley("token", "create")
	if err == nil || !strings.Contains(out, "no database parley.db") || strings.Count(out, "\n") != 1 {
		t.Errorf("%v\n%s", err, out)
	}
	if left, _ := exec.Command("ls", s.dir).Output(); len(left) > 0 {
		t.Errorf("it left %s", left)
	}
}

// TestEachStartSaysWhere: also a later start tells where the page is, and how to get in; a browser
// that comes to / is led there.
func TestEachStartSaysWhere(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.stop()
	s.up()
	if out := s.stdout(); !strings.Contains(out, s.url()+"/ ") || !strings.Contains(out, "token create") || strings.Contains(out, token) {
		t.Errorf("the second start says:\n%s", out)
	}
	stay := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for path, want := range map[string]string{"/": "302 /graphiql", "/?a=b": "302 /graphiql", "/nothing": "404 ", "/graphiql": "200 "} {
		res, err := stay.Get(s.url() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if got := fmt.Sprintf("%d %s", res.StatusCode, res.Header.Get("Location")); got != want {
			t.Errorf("GET %s: %s, want %s", path, got, want)
		}
	}
	for path, status := range map[string]int{"/": 404, "/nothing": 404} {
		if got, _, answer := s.call("POST", path, nil, "{}"); got != status || at(answer, "code") != "not_found" {
			t.Errorf("POST %s: %d %v", path, got, answer)
		}
	}
}

// TestAnotherSecretKey: a database that was made with one key is opened with no other, and one line
// says so.
func TestAnotherSecretKey(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.stop()
	s.env = append(s.env, "PARLEY_SECRET_KEY="+base64.StdEncoding.EncodeToString(make([]byte, 32)))
	for _, args := range [][]string{nil, {"token", "create"}, {"business", "create", "b"}} {
		out, err := s.parley(args...)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || strings.Count(out, "\n") != 1 || !strings.Contains(out, "not the one that this database was made with") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}
